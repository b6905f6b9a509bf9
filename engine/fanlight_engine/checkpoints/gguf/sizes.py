"""What a GGUF says about a model's sizes and transformers does not read from it, put back into the configuration.

transformers takes the family's usual value instead, which fits the usual checkpoints only.
"""

from __future__ import annotations

from transformers import PretrainedConfig

from fanlight_engine.checkpoints.gguf.header import GgufHeader

_SIZES = (
    ("attention.key_length", "head_dim"),
    ("expert_feed_forward_length", "moe_intermediate_size"),
)
"""Keys below the architecture's name, and what configurations call them."""
_WINDOW = "attention.sliding_window"


def restore_sizes(header: GgufHeader, config: PretrainedConfig) -> None:
    """Complete `config` with the sizes that the file states, where the family has them at all."""
    for key, name in _SIZES:
        stated = header.of_model(key)
        if stated and getattr(config, name, None) is not None:
            setattr(config, name, int(stated))
    window = header.of_model(_WINDOW)
    if window and getattr(config, "sliding_window", 0) is None:  # the family can have one, and none was read
        config.sliding_window = int(window)
