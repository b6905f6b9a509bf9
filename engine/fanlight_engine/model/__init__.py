"""The room of the model: everything that knows torch and transformers."""

import logging

# Where torchao is installed, transformers imports it, and torch warns of a deprecation in torchao itself.
logging.getLogger("torch.utils._pytree").setLevel(logging.ERROR)
