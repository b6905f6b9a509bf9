"""What a text configuration says of its rotary positions: the sets of parameters, and how far they reach.

Knows configurations only; the modules that are made of them are in `rotary`.
"""

from __future__ import annotations

from typing import Any

from transformers import PretrainedConfig

DEFAULT = "default"
_STRETCHED = "yarn"


def rope_parameters(text_config: PretrainedConfig) -> list[dict[str, Any]]:
    """One set for all layers, or one for each type of layer."""
    parameters: dict[str, Any] = getattr(text_config, "rope_parameters", None) or {}
    return [one for one in parameters.values() if isinstance(one, dict)] or [parameters]


def rope_type(parameters: dict[str, Any]) -> str:
    """The name of the way in which a set of parameters makes factors."""
    return parameters.get("rope_type", DEFAULT)


def longest_context(text_config: PretrainedConfig) -> int:
    """Tokens of prompt and answer that the positions are made for.

    That is max_position_embeddings. With YaRN it is also what the original length becomes by its factor: model cards
    tell how to add YaRN to a config.json, and leave max_position_embeddings as it was.
    """
    lengths = [int(text_config.max_position_embeddings)]
    for one in rope_parameters(text_config):
        if rope_type(one) == _STRETCHED:
            lengths.append(int((one.get("original_max_position_embeddings") or 0) * (one.get("factor") or 1)))
    return max(lengths)
