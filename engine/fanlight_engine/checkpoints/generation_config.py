"""What generation_config.json says: end ids, the settings that follow from it, and what of it is not applied.

An unset sampling option means what transformers' `generate` would do, but for lengths: a checkpoint's max_new_tokens is
a guard of `generate` against endless answers, while here an answer may take the rest of the context unless somebody
chose otherwise. Knows JSON values only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_NEUTRAL_VALUES = {
    "encoder_repetition_penalty": 1.0,
    "no_repeat_ngram_size": 0,
    "encoder_no_repeat_ngram_size": 0,
    "min_length": 0,
    "min_new_tokens": 0,
    "stop_strings": None,
    "guidance_scale": 1.0,
    "penalty_alpha": 0.0,
    "exponential_decay_length_penalty": None,
    "renormalize_logits": False,
    "top_h": None,
    "typical_p": 1.0,
    "epsilon_cutoff": 0.0,
    "eta_cutoff": 0.0,
    "num_beams": 1,
    "sequence_bias": None,
    "bad_words_ids": None,
    "suppress_tokens": None,
    "begin_suppress_tokens": None,
    "forced_bos_token_id": None,
    "forced_eos_token_id": None,
}
"""Settings of `generate` that change which token is chosen, and the value at which they do not."""
_TOP_K_OF_TRANSFORMERS = 50
"""What `generate` takes where it samples and is told none."""


def end_ids(generation: Mapping[str, Any], *others: Any) -> tuple[int, ...]:
    """The ids that end an answer: the file's, else the first of `others` that is one. Raises ValueError, TypeError."""
    for value in (generation.get("eos_token_id"), *others):
        if isinstance(value, int):
            return (value,)
        if isinstance(value, list) and value:
            return tuple(int(one) for one in value)
    return ()


def sampling_settings(generation: Mapping[str, Any]) -> dict[str, float | int]:
    """The settings default_temperature and so on, those that the file decides. Raises ValueError, TypeError."""
    settings = _named(generation, "repetition_penalty")
    if "do_sample" not in generation:
        return settings
    if not generation["do_sample"]:
        return {"default_temperature": 0.0, **settings}
    return {
        "default_temperature": _number(generation, "temperature", 1.0),
        "default_top_k": int(_number(generation, "top_k", _TOP_K_OF_TRANSFORMERS)),
        **_named(generation, "top_p", "min_p"),
        **settings,
    }


def unapplied_settings(generation: Mapping[str, Any]) -> tuple[str, ...]:
    """What changes the tokens of `generate` and does nothing here, as name=value."""
    return tuple(
        f"{name}={generation[name]}"
        for name, neutral in _NEUTRAL_VALUES.items()
        if generation.get(name) not in (None, neutral)
    )


def suggested_length(generation: Mapping[str, Any]) -> int | None:
    """Its max_new_tokens, which is told and not applied; None where it names none."""
    value = generation.get("max_new_tokens")
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _named(generation: Mapping[str, Any], *names: str) -> dict[str, float | int]:
    """The settings of these names that the file has a value for."""
    return {f"default_{name}": float(generation[name]) for name in names if generation.get(name) is not None}


def _number(generation: Mapping[str, Any], name: str, unset: float) -> float:
    value = generation.get(name)
    return unset if value is None else float(value)
