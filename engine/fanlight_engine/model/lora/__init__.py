"""LoRA adapters: their files, their matrices, and the rows of a step that they change."""
