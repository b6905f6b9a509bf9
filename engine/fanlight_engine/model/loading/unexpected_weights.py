"""Weights that a model has no place for: refused where leaving them out gives other answers, told otherwise.

Published checkpoints bring much that nobody needs: buffers of old releases, towers beside a text model, heads for
training or for drafting. But a bias that config.json does not speak of, or a layer too many, belongs to another model
than the one that would be served. Knows the model's modules and the files' headers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import torch
from safetensors import safe_open
from torch import nn
from transformers import PreTrainedModel

from fanlight_engine.checkpoints.weight_files import WeightFiles
from fanlight_engine.errors import CheckpointError
from fanlight_engine.model.loading.progress import Report

_COMPUTED_WITH = ("weight", "bias")
"""Last parts of the names of what a module computes with; others are buffers, or scales of caches and activations."""
_IN_A_LAYER = re.compile(r"(?P<layers>.*?layers)\.(?P<number>\d+)\..*")
_TOGETHER = "config.json and weights must come from the same checkpoint"


def judge_unexpected(
    name: str, model: PreTrainedModel, files: WeightFiles, keys: Sequence[str], report: Report
) -> None:
    """Raise CheckpointError for the first key that other answers would hang on; `report` gets a line about the rest.

    `name` is the checkpoint's directory, the keys are spelled as the model spells its parameters.
    """
    if not keys:
        return
    modules = dict(model.named_modules())
    inside = _ids_inside_decoder(model)
    for key in keys:
        why = _why_it_counts(key, modules, inside, model)
        if why and not _is_of_zeros(key, files):
            raise CheckpointError(
                f"{_file_of(key, files, name)} has {key}, {why}; {len(keys)} weights have no place in the model; "
                f"{_TOGETHER}"
            )
    counted = "1 weight" if len(keys) == 1 else f"{len(keys)} weights"
    report(
        f"leaving out {counted} that the model has no place for, the first is {keys[0]} in "
        f"{_file_of(keys[0], files, name)}"
    )


def _ids_inside_decoder(model: PreTrainedModel) -> frozenset[int]:
    """Of all modules below the decoder, and of the head; what lies beside the decoder's own parts is not used."""
    decoder, head = model.get_decoder(), model.get_output_embeddings()
    assert decoder is not None, "it was there when loading was planned"
    return frozenset(id(module) for module in (*decoder.modules(), head) if module is not decoder)


def _why_it_counts(key: str, modules: Mapping[str, nn.Module], inside: frozenset[int], model: PreTrainedModel) -> str:
    """Half a sentence; empty where leaving it out changes nothing."""
    path, _, parameter = key.rpartition(".")
    found = _IN_A_LAYER.fullmatch(key)
    layers = modules.get(found["layers"]) if found else None
    if found is not None and isinstance(layers, nn.ModuleList) and id(layers) in inside:
        drafting = getattr(model.config.get_text_config(), "num_nextn_predict_layers", None) or 0
        if int(found["number"]) >= len(layers):
            is_for_drafts = int(found["number"]) < len(layers) + drafting
            return "" if is_for_drafts else f"and by config.json there are {len(layers)} layers (num_hidden_layers)"
    owner = _closest(path, modules)
    if parameter in _COMPUTED_WITH and (path in modules or id(owner) in inside):
        return f"and {type(owner).__name__} as config.json makes it computes without it"
    return ""


def _closest(path: str, modules: Mapping[str, nn.Module]) -> nn.Module:
    """The module of that path, or the one that it would be in."""
    while path not in modules:
        path = path.rpartition(".")[0]
    return modules[path]


def _is_of_zeros(key: str, files: WeightFiles) -> bool:
    """Some tools write biases of zeros for modules that have none."""
    stored = files.of_parameter(key)
    if stored is None or not key.endswith(".bias"):
        return False
    with safe_open(stored.file, framework="pt") as weights:
        return not torch.count_nonzero(weights.get_tensor(stored.name)).item()


def _file_of(key: str, files: WeightFiles, name: str) -> str:
    stored = files.of_parameter(key)
    return f"{name}/{stored.file.name}" if stored else f"the safetensors of {name}"
