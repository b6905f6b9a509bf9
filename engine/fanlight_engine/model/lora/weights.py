"""The matrices of one LoRA adapter, by the module that they are added to; peft and transformers say which belong where.

peft puts its own layers into the model, transformers fills them (it knows how names of modules changed over time), and
they are taken out again: what stays is the model as it was, and a pair of matrices per module. Knows nothing of steps.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from safetensors.torch import load_file
from transformers import PreTrainedModel
from transformers.utils import logging as transformers_logging

from fanlight_engine.checkpoints.quiet import without_notices
from fanlight_engine.errors import CheckpointError
from fanlight_engine.model.lora.files import CONFIG_FILE, LoraFiles

_PEFT_NAME = "served"
"""What peft calls the one adapter that is in the model at a time; it takes no dots, which our names may have."""
_ABOVE_LAYERS = frozenset({"model", "language_model", "text_model", ""})
"""Parts of the names that decoders have had."""


@dataclass(frozen=True, slots=True)
class LowRank:
    """What is added to one linear module: inputs @ down @ up, with the adapter's scaling in `up`."""

    down: torch.Tensor
    """[in, rank]"""
    up: torch.Tensor
    """[rank, out]"""

    @property
    def rank(self) -> int:
        """Columns of `down`."""
        return self.down.shape[1]


def require_packages_of_adapter(files: LoraFiles) -> None:
    """Raise CheckpointError where what reads adapters is not installed."""


def read_low_rank(model: PreTrainedModel, files: LoraFiles) -> dict[str, LowRank]:
    """The adapter's matrices on the model's device, in its number type, by the path of the module in the model.

    Raises CheckpointError where the adapter does not fit the model, or adds to what is not served.
    """
    require_packages_of_adapter(files)
    try:
        with _quietly():
            report = _load(model, files)
        layers = dict(_peft_layers(model))
        _refuse_other_modules(model, files, layers)
        _refuse_incomplete(files, report)
        return {path: _low_rank(model, files, path, layer) for path, layer in layers.items()}
    finally:
        _remove_peft_layers(model)


def _load(model: PreTrainedModel, files: LoraFiles) -> Any:
    """transformers' report of what was missing, unknown, or of another shape."""
    from peft import LoraConfig

    try:
        config = LoraConfig(**_with_paths_of_today(model, files.settings))
        return model.load_adapter(
            adapter_name=_PEFT_NAME,
            peft_config=config,  # pyright: ignore[reportArgumentType] it takes peft's classes, too
            adapter_state_dict=load_file(files.weights_file, device=str(model.device)),
            ignore_mismatched_sizes=True,
        )
    except Exception as error:  # foreign code on foreign data
        raise CheckpointError(
            f"lora {files.lora.name}: {files.path} cannot be added to {type(model).__name__}: {error}; adapter and "
            "checkpoint must belong together"
        ) from error


def _with_paths_of_today(model: PreTrainedModel, settings: dict[str, Any]) -> dict[str, Any]:
    """The settings with modules of the decoder that are named by whole paths called as the model calls them now.

    transformers knows how the names of weights changed over time, and peft looks for modules by name before that.
    """
    targets = settings.get("target_modules")
    if not isinstance(targets, list):
        return settings
    modules = dict(model.named_modules())
    (decoder,) = (path for path, module in modules.items() if module is model.get_decoder())
    return {**settings, "target_modules": [_path_of_today(one, decoder, modules) for one in targets]}


def _path_of_today(target: str, decoder: str, modules: Mapping[str, Any]) -> str:
    above, layer, below = target.partition("layers.")
    path = f"{decoder}.{layer}{below}"
    is_old = layer and target not in modules and path in modules and _ABOVE_LAYERS.issuperset(above.split("."))
    return path if is_old else target


def _peft_layers(model: PreTrainedModel) -> Iterator[tuple[str, Any]]:
    from peft.tuners.lora import LoraLayer

    for path, module in model.named_modules():
        if isinstance(module, LoraLayer):
            yield path, module


def _refuse_other_modules(model: PreTrainedModel, files: LoraFiles, layers: dict[str, Any]) -> None:
    """Rows of a packed step pass through the linear modules of the decoder and the head, and nowhere else."""
    from peft.tuners.lora import Linear

    decoder, head = model.get_decoder(), model.get_output_embeddings()
    assert decoder is not None
    served = {id(module) for module in (*decoder.modules(), head)}
    for path, layer in layers.items():
        if id(layer) not in served:
            raise CheckpointError(
                f"lora {files.lora.name}: {files.path / CONFIG_FILE} adds to {path}, which belongs to the vision tower "
                "or its projector; only the decoder takes adapters: train one whose target_modules name modules of it"
            )
        base = layer.get_base_layer()
        if not (isinstance(layer, Linear) and isinstance(base, torch.nn.Linear)):
            raise CheckpointError(
                f"lora {files.lora.name}: {files.path / CONFIG_FILE} adds to {path}, a {type(base).__name__}; only "
                "adapters of torch's own linear modules are served, plain or quantised with torchao"
            )


def _refuse_incomplete(files: LoraFiles, report: Any) -> None:
    """peft fills missing matrices with its own beginnings and only warns."""
    for kind, keys in (
        ("lacks", sorted(map(str, report.missing_keys))),
        ("has no place in this model for", sorted(map(str, report.unexpected_keys))),
        ("has wrongly shaped", sorted(f"{key} {tuple(ours)}" for key, ours, _ in report.mismatched_keys)),
    ):
        if keys:
            raise CheckpointError(
                f"lora {files.lora.name}: {files.weights_file} {kind} {len(keys)} matrices, the first is "
                f"{keys[0].replace(f'.{_PEFT_NAME}', '')}; adapter and checkpoint must belong together"
            )


def _low_rank(model: PreTrainedModel, files: LoraFiles, path: str, layer: Any) -> LowRank:
    down = layer.lora_A[_PEFT_NAME].weight.detach().float().T
    up = layer.lora_B[_PEFT_NAME].weight.detach().float().T * layer.scaling[_PEFT_NAME]
    down, up = (one.to(model.device, model.dtype).contiguous() for one in (down, up))
    if not (down.isfinite().all() and up.isfinite().all()):  # times zero they would still spoil their neighbours' rows
        raise CheckpointError(
            f"lora {files.lora.name}: {files.weights_file} has numbers for {path} that are not finite in "
            f"{model.dtype}; save the adapter again, or choose another dtype"
        )
    return LowRank(down, up)


def _remove_peft_layers(model: PreTrainedModel) -> None:
    for path, layer in list(_peft_layers(model)):
        model.set_submodule(path, layer.get_base_layer())
    model._hf_peft_config_loaded = False
    if hasattr(model, "peft_config"):
        del model.peft_config


@contextmanager
def _quietly() -> Iterator[None]:
    """What they warn of is training and merging, which do not happen here, and what their report says anyway."""
    shows_bars = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        with without_notices(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        if shows_bars:
            transformers_logging.enable_progress_bar()
