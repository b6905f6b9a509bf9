"""The engine without a server: `LLM` and `AsyncLLM`, with the validation and the errors of the server."""
