"""The server's commands; each is a module with `main(argv) -> int`, found by entry points `fanlight.commands`."""
