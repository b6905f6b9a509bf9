"""The room of the model: everything that knows torch and transformers."""
