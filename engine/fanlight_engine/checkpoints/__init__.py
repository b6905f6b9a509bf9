"""What a checkpoint is, from its name to its facts: read from small files and headers, before any weight is."""
