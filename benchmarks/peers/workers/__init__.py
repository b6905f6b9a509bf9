"""Programs that run in a peer's environment: load a checkpoint, answer a batch, say when each token came.

They import nothing of ours but `serving` and `pictures`, which need nothing but Python; only those of Fanlight import
Fanlight.
"""
