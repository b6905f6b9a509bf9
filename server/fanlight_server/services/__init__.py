"""One file per service of the contract. Messages and events are handed through `convert`, and not looked into."""
