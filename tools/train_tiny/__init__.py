"""Training of the embedded model: drawn scenes, questions about them, and a small Qwen2.5-VL taught from scratch.

`scenes`, `digits`, `questions`, `small_talk` and `cases` need no torch, so tests and demonstrations can draw the same
held-out pictures that the model card's figures were measured on. The rest is only needed to train, export and evaluate.
"""
