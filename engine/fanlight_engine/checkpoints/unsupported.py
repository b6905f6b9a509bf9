"""Why a checkpoint that is in no row of the family table is refused, found from its config.json alone.

The reasons are kinds of models, known by the keys that their configurations have; of a model_type that transformers
knows, the defaults of its configuration class are looked at as well. Loads no weights and runs no code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
    MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES,
    MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
    MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES,
    MODEL_MAPPING_NAMES,
)

_ATTENTION_LAYERS = frozenset({"full_attention", "sliding_attention", "chunked_attention", "attention"})
_RECURRENT_KEYS = frozenset(
    {"state_size", "lru_width", "hybrid_override_pattern", "conv_L_cache", "rescale_every", "linear_attn_config"}
)
_RECURRENT_STARTS = ("mamba_", "ssm_", "rwkv_", "linear_attn_", "linear_conv_", "linear_num_", "linear_key_")
_SOUND_WORDS = frozenset({"audio", "speech", "mel"})
_SOUND_KEYS = frozenset({"sampling_rate", "feat_extract_norm"})
_ROTARY_KEYS = frozenset({"rope_parameters", "rope_scaling", "rope_theta", "rotary_dim", "rotary_pct"})
_GENERATING_ENDS = ("CausalLM", "LMHeadModel", "ConditionalGeneration", "DoubleHeadsModel", "GenerationModel")
_OWN_CLASSES = (
    MODEL_MAPPING_NAMES,
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
    MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES,
    MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
    MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES,
)
"""Class names by model_type, for the classes that published configurations name as code of their own."""


@dataclass(frozen=True, slots=True)
class _Described:
    """A configuration as published, and what transformers says of its model_type."""

    config: dict[str, Any]
    values: dict[str, list[Any]]
    """Everything that the configuration and those inside it say, by key; what it leaves out as its class has it."""
    defaults: dict[str, Any] | None
    """None where transformers has no such model_type."""

    def says(self, key: str) -> bool:
        """Whether any part of the configuration has a value for the key that is not empty, 0 or false."""
        return any(self.values.get(key, ()))


def why_unsupported(config: dict[str, Any]) -> str:
    """The reason, as half a sentence, why a checkpoint with this config.json is not served."""
    defaults = _defaults_of(config.get("model_type"))
    described = _Described(config, _by_key((defaults or {}) | config), defaults)
    return next(reason for applies, reason in _REASONS if applies(described)).format(
        model_type=config.get("model_type"),
        architectures=", ".join(map(str, config.get("architectures") or ())),
        code=code_of_its_own(config),
        version=transformers.__version__,
    )


def code_of_its_own(config: dict[str, Any]) -> str | None:
    """The class that config.json asks for under auto_map and that transformers does not have itself; None without one.

    Many configurations name the file that a class was first published in, though transformers has taken it over.
    """
    auto_map = config.get("auto_map")
    if not isinstance(auto_map, dict):
        return None if auto_map is None else str(auto_map)
    own = _own_class_names(config.get("model_type"))
    for auto_class, reference in auto_map.items():
        is_loaded = auto_class == "AutoConfig" or auto_class.startswith("AutoModel")
        if is_loaded and str(reference).rsplit(".", 1)[-1] not in own:
            return str(reference)
    return None


def classes_without_text(config: dict[str, Any]) -> tuple[str, ...]:
    """The classes that config.json names under architectures, where none of them generates text; empty where one does,
    or none is named."""
    named = config.get("architectures")
    classes = tuple(map(str, named if isinstance(named, list | tuple) else () if named is None else (named,)))
    return () if any(one.endswith(_GENERATING_ENDS) for one in classes) else classes


def _by_key(config: dict[str, Any]) -> dict[str, list[Any]]:
    values: dict[str, list[Any]] = {}
    for key, value in _walk(config):
        values.setdefault(key, []).append(value)
    return values


def _walk(config: dict[str, Any], depth: int = 0) -> Iterator[tuple[str, Any]]:
    for key, value in config.items():
        yield str(key), value
        if isinstance(value, dict) and depth < 3 and key != "auto_map":
            yield from _walk(value, depth + 1)


def _defaults_of(model_type: Any) -> dict[str, Any] | None:
    if not isinstance(model_type, str) or model_type not in CONFIG_MAPPING:
        return None
    try:
        return CONFIG_MAPPING[model_type]().to_dict()
    except Exception:  # some classes cannot be made of nothing
        return {}


def _own_class_names(model_type: Any) -> set[str]:
    if not isinstance(model_type, str) or model_type not in CONFIG_MAPPING:
        return set()
    names = {CONFIG_MAPPING[model_type].__name__}
    for mapping in _OWN_CLASSES:
        found = mapping.get(model_type, ())
        names.update([found] if isinstance(found, str) else found)
    return names


def _is_diffusion(described: _Described) -> bool:
    return bool({"_diffusers_version", "_class_name"} & described.values.keys()) or any(
        "diffusion" in str(one).lower() for one in described.values.get("model_type", ())
    )


def _has_sound(described: _Described) -> bool:
    keys = [key for key in described.values if described.says(key)]
    return any(key in _SOUND_KEYS or not _SOUND_WORDS.isdisjoint(key.split("_")) for key in keys)


def _has_encoder(described: _Described) -> bool:
    by_default = (described.defaults or {}).get("is_encoder_decoder", False)
    if described.config.get("is_encoder_decoder", by_default):
        return True
    return any("cross" in key.split("_") and described.says(key) for key in described.values)


def _has_recurrence(described: _Described) -> bool:
    layers = {str(one) for types in described.values.get("layer_types", ()) for one in types or ()}
    return bool(layers - _ATTENTION_LAYERS) or any(
        key in _RECURRENT_KEYS or key.startswith(_RECURRENT_STARTS) for key in described.values
    )


def _does_not_generate(described: _Described) -> bool:
    return bool(classes_without_text(described.config))


def _is_not_rotary(described: _Described) -> bool:
    if described.says("alibi"):
        return True
    keys = {*described.values, *(_by_key(described.defaults) if described.defaults else ())}
    return described.defaults is not None and _ROTARY_KEYS.isdisjoint(keys)


def _keeps_compressed(described: _Described) -> bool:
    return described.says("kv_lora_rank")


def _is_of_a_kind_that_does_not_generate(described: _Described) -> bool:
    """Where no class is named: whether the model_type has none that generates, or is one that fills gaps."""
    if described.defaults is None or described.config.get("architectures"):
        return False
    model_type = described.config["model_type"]
    generates = (*MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, *MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES)
    return model_type in MODEL_FOR_MASKED_LM_MAPPING_NAMES or model_type not in generates


def _names_no_type(described: _Described) -> bool:
    return described.config.get("model_type") is None


def _is_unknown(described: _Described) -> bool:
    return described.defaults is None


def _is_anything(_: _Described) -> bool:
    return True


def _asks_for_code(described: _Described) -> bool:
    return code_of_its_own(described.config) is not None


def _is_known_by_its_code_only(described: _Described) -> bool:
    """Whether transformers has no such model: what its own class does cannot be told by the name."""
    return _is_unknown(described) and _asks_for_code(described)


_OWN_CODE = (
    "it asks for code of its own ({code}), which is never run; look for a conversion to transformers' own classes, "
    "whose name often ends in -hf"
)

_REASONS: tuple[tuple[Callable[[_Described], bool], str], ...] = (
    (_is_diffusion, "it is a diffusion model, which does not generate token after token"),
    (_has_sound, "it hears or makes sound; text, pictures and clips are served"),
    (_has_encoder, "its decoder attends to what an encoder made of the prompt (encoder-decoder, cross attention)"),
    (_has_recurrence, "some of its layers keep a state instead of keys and values (state-space, linear attention)"),
    (_is_known_by_its_code_only, _OWN_CODE),
    (_does_not_generate, "{architectures} does not generate text"),
    (_is_of_a_kind_that_does_not_generate, "models of type {model_type} do not generate text"),
    (_is_not_rotary, "its positions are not rotary (RoPE) but learned for each place, or of another kind (ALiBi)"),
    (_keeps_compressed, "its attention keeps compressed keys and values (multi-head latent attention)"),
    (_asks_for_code, _OWN_CODE),
    (_names_no_type, "it is not the configuration of one of transformers' models"),
    (_is_unknown, "transformers {version} has no such model_type"),
    (_is_anything, "that family has no row in the family table"),
)
"""Reasons in the order in which they are looked for; the last one always applies."""
