"""Checkpoints that must not be served: each made from a good one by one change, with what an operator must be told.

`HOSTILE` is the table; how commands end on them is in `refused_starts`.
"""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from tests.engine.checkpoints import make_llama, make_llava, make_qwen2_5_vl

TOWER, TEXT, GRID = "llava", "llama", "qwen2_5_vl"
MAKERS: dict[str, Callable[[Path], Path]] = {TEXT: make_llama, TOWER: make_llava, GRID: make_qwen2_5_vl}

_WEIGHTS, _INDEX = "model.safetensors", "model.safetensors.index.json"
_SHARDS = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"

Spoil = Callable[[Path], None]


@dataclass(frozen=True, slots=True)
class Hostile:
    """One checkpoint. `told` are parts of the message, the file and the fix among them; `is_seen_by_config` says
    whether `fanlight config --show`, which reads its smallest files alone, refuses it as well."""

    name: str
    base: str
    spoil: Spoil
    told: tuple[str, ...]
    is_seen_by_config: bool = False
    arguments: tuple[str, ...] = ()
    """Further ones of the command; {directory} is that of the checkpoint."""

    def make(self, directory: Path, good: Path) -> Path:
        """A spoilt copy of the good checkpoint."""
        shutil.copytree(good, directory)
        self.spoil(directory)
        return directory

    def serve(self, directory: Path) -> list[str]:
        """Arguments of `fanlight serve` for it."""
        further = [argument.format(directory=directory) for argument in self.arguments]
        return [str(directory), "--port", "0", "--no-admin", "--torch-threads", "1", "--kv-pages", "64", *further]


def _json(name: str, change: Callable[[Any], Any], directory: Path) -> None:
    file = directory / name
    content = json.loads(file.read_text())
    file.write_text(json.dumps(change(content)))


def _with(name: str, **values: Any) -> Spoil:
    """A JSON file with these values, wherever they are inside."""

    def change(content: dict[str, Any]) -> dict[str, Any]:
        for key, value in values.items():
            *path, last = key.split("__")
            place = content
            for part in path:
                place = place[part]
            place[last] = value
        return content

    return partial(_json, name, change)


def _text(name: str, text: str) -> Spoil:
    """A file with this content."""

    def write(directory: Path) -> None:
        (directory / name).unlink(missing_ok=True)
        (directory / name).write_text(text)

    return write


def _without(*names: str) -> Spoil:
    def remove(directory: Path) -> None:
        for name in names:
            (directory / name).unlink()

    return remove


def _all(*spoils: Spoil) -> Spoil:
    def spoil(directory: Path) -> None:
        for one in spoils:
            one(directory)

    return spoil


def _link_to_itself(name: str) -> Spoil:
    def link(directory: Path) -> None:
        (directory / name).unlink()
        (directory / name).symlink_to(name)

    return link


def _directory_as(name: str) -> Spoil:
    def replace(directory: Path) -> None:
        (directory / name).unlink()
        (directory / name).mkdir()

    return replace


def _in_shards(directory: Path) -> None:
    weights = load_file(directory / _WEIGHTS)
    names = sorted(weights)
    halves = names[: len(names) // 2], names[len(names) // 2 :]
    for file, half in zip(_SHARDS, halves, strict=True):
        save_file({name: weights[name] for name in half}, directory / file, metadata={"format": "pt"})
    placed = {name: file for file, half in zip(_SHARDS, halves, strict=True) for name in half}
    (directory / _INDEX).write_text(json.dumps({"metadata": {}, "weight_map": placed}))
    (directory / _WEIGHTS).unlink()


def _weights(change: Callable[[dict[str, Any]], None]) -> Spoil:
    def save(directory: Path) -> None:
        weights = load_file(directory / _WEIGHTS)
        change(weights)
        save_file(weights, directory / _WEIGHTS, metadata={"format": "pt"})

    return save


def _transpose_one(weights: dict[str, Any]) -> None:
    name = next(name for name in weights if name.endswith("up_proj.weight"))
    weights[name] = weights[name].t().contiguous()


def _drop_one(weights: dict[str, Any]) -> None:
    del weights[next(name for name in weights if name.endswith("down_proj.weight"))]


def _shorten_embedding(weights: dict[str, Any]) -> None:
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        weights[name] = weights[name][:64].contiguous()


def _cut_off(directory: Path) -> None:
    data = (directory / _WEIGHTS).read_bytes()
    (directory / _WEIGHTS).write_bytes(data[: len(data) // 2])


def _endless_header(directory: Path) -> None:
    (directory / _WEIGHTS).write_bytes(struct.pack("<Q", 1 << 60) + b"{}")


def _as_pickle(directory: Path) -> None:
    (directory / _WEIGHTS).rename(directory / "pytorch_model.bin")


def _lora_of_another(directory: Path) -> None:
    """An adapter for a decoder that is four times as wide."""
    adapter = directory / "adapter"
    adapter.mkdir()
    weights = {}
    for layer in range(2):
        module = f"base_model.model.model.layers.{layer}.self_attn.q_proj"
        weights |= {f"{module}.lora_A.weight": torch.zeros(4, 256), f"{module}.lora_B.weight": torch.zeros(256, 4)}
    save_file(weights, adapter / "adapter_model.safetensors", metadata={"format": "pt"})
    config = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj"], "task_type": "CAUSAL_LM"}
    (adapter / "adapter_config.json").write_text(json.dumps(config))


def _lora_as_pickle(directory: Path) -> None:
    _lora_of_another(directory)
    (directory / "adapter" / "adapter_model.safetensors").rename(directory / "adapter" / "adapter_model.bin")


def _template(text: str) -> Spoil:
    return _text("chat_template.jinja", text)


def _tokenizer_without(token: str) -> Spoil:
    def change(content: dict[str, Any]) -> dict[str, Any]:
        content["added_tokens"] = [one for one in content["added_tokens"] if one["content"] != token]
        content["model"]["vocab"].pop(token, None)
        return content

    return partial(_json, "tokenizer.json", change)


_FROM_ONE = "from one checkpoint"
_NESTED = '{"a":' * 99_999
_FROM_THE_SAME = "must come from the same checkpoint"
_NUMBERS = ("config.json", "from")
_WITH_LORA = ("--lora", "other={directory}/adapter")
_TEMPLATE_FIX = "take the template from where the weights are from, or remove it"
_LOOPS = "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}"
_LOOPS += "{% endfor %}{% endfor %}{% endfor %}"
_ENVIRON = "{{ cycler.__init__.__globals__.os.environ }}"


HOSTILE: tuple[Hostile, ...] = (
    # Weights.
    Hostile(
        "a shard is missing", TEXT, _all(_in_shards, _without(_SHARDS[1])), (_INDEX, _SHARDS[1], "fetch that file")
    ),
    Hostile(
        "the index names a file that is elsewhere",
        TEXT,
        _all(_in_shards, _text(_INDEX, '{"weight_map": {"a": "../../../etc/passwd"}}')),
        (_INDEX, "../../../etc/passwd", "fetch it again"),
    ),
    Hostile(
        "the index is nested deeply", TEXT, _all(_in_shards, _text(_INDEX, _NESTED)), (_INDEX, "not JSON", "fetch it")
    ),
    Hostile("the index is no index", TEXT, _all(_in_shards, _text(_INDEX, "[1]")), (_INDEX, "fetch it again")),
    Hostile("a weight has another shape", TEXT, _weights(_transpose_one), (_WEIGHTS, "up_proj.weight", _FROM_THE_SAME)),
    Hostile("a weight is missing", TOWER, _weights(_drop_one), (_WEIGHTS, "down_proj.weight", _FROM_THE_SAME)),
    Hostile("the weights are cut off", TEXT, _cut_off, (_WEIGHTS, "is cut off", "fetch it again")),
    Hostile("the weights' header is endless", TEXT, _endless_header, (_WEIGHTS, "fetch it again")),
    Hostile(
        "the weights are a pointer of Git LFS",
        TEXT,
        _text(_WEIGHTS, "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"),
        (_WEIGHTS, "fetch it again"),
    ),
    Hostile("the weights are pickled", TEXT, _as_pickle, ("pytorch_model.bin", "save the checkpoint as safetensors")),
    Hostile("the weights are a link to themselves", TEXT, _link_to_itself(_WEIGHTS), (_WEIGHTS, "fetch")),
    # config.json.
    Hostile(
        "config.json names code of its own",
        TEXT,
        _with("config.json", auto_map={"AutoModelForCausalLM": "evil.EvilForCausalLM"}),
        ("config.json", "evil.EvilForCausalLM", "never run", "use a checkpoint"),
        is_seen_by_config=True,
    ),
    Hostile("config.json is no JSON", TEXT, _text("config.json", "{"), ("config.json", "fetch it again"), True),
    Hostile("config.json is a list", TEXT, _text("config.json", "[1]"), ("config.json", "fetch"), True),
    Hostile("config.json is nested deeply", TEXT, _text("config.json", _NESTED), ("config.json", "fetch"), True),
    Hostile(
        "config.json has 100 MB",
        TEXT,
        _with("config.json", filled="x" * 100_000_000),
        ("config.json", "fetch"),
        True,
    ),
    Hostile("config.json is a directory", TEXT, _directory_as("config.json"), ("config.json", "give"), True),
    Hostile("config.json is a link to itself", TEXT, _link_to_itself("config.json"), ("config.json", "give"), True),
    Hostile(
        "the model is of a kind that is not served",
        TEXT,
        _with("config.json", model_type="mamba"),
        ("config.json", "'mamba'", "supported: "),
        True,
    ),
    Hostile("config.json makes each token a billion numbers", TEXT, _with("config.json", hidden_size=10**9), _NUMBERS),
    Hostile("config.json has a billion layers", TEXT, _with("config.json", num_hidden_layers=10**9), _NUMBERS, True),
    Hostile("config.json has no attention heads", TEXT, _with("config.json", num_attention_heads=0), _NUMBERS),
    Hostile("config.json has a vocabulary of words", TEXT, _with("config.json", vocab_size="many"), _NUMBERS, True),
    Hostile(
        "config.json has a context below nothing", TEXT, _with("config.json", max_position_embeddings=-1), _NUMBERS
    ),
    Hostile("the vocabulary is larger than the embedding", TEXT, _with("config.json", vocab_size=100_000), _NUMBERS),
    Hostile(
        "generation_config.json has words for numbers",
        TEXT,
        _text("generation_config.json", '{"do_sample": true, "temperature": "hot", "eos_token_id": [["x"]]}'),
        ("generation_config.json", "number"),
        True,
    ),
    # Tokenizer and processor.
    Hostile(
        "tokenizer_config.json names code of its own",
        TEXT,
        _with(
            "tokenizer_config.json", tokenizer_class="EvilTokenizer", auto_map={"AutoTokenizer": ["evil.Evil", None]}
        ),
        ("tokenizer_config.json", "evil.Evil", "never run"),
    ),
    Hostile(
        "tokenizer_config.json is nested deeply",
        TEXT,
        _text("tokenizer_config.json", _NESTED),
        ("tokenizer_config.json", "needed"),
    ),
    Hostile(
        "tokenizer.json is cut off", TEXT, _text("tokenizer.json", '{"version": "1.0"'), ("tokenizer.json", "needed")
    ),
    Hostile(
        "the tokenizer has more tokens than the embedding",
        TEXT,
        _all(_weights(_shorten_embedding), _with("config.json", vocab_size=64)),
        ("tokenizer.json", "64", _FROM_ONE),
    ),
    Hostile(
        "the tokenizer has no token for pictures",
        TOWER,
        _tokenizer_without("<image>"),
        ("tokenizer.json", "<image>", "from where the weights are from"),
    ),
    Hostile(
        "the processor names code of its own",
        TOWER,
        _with("processor_config.json", processor_class="EvilProcessor", auto_map={"AutoProcessor": "evil.Evil"}),
        ("processor_config.json", "evil.Evil", "never run"),
    ),
    Hostile(
        "the processor believes in smaller patches",
        TOWER,
        _with("processor_config.json", patch_size=7),
        ("processor_config.json", "config.json", "64 positions", "(16, 64)", _FROM_ONE),
    ),
    Hostile(
        "the processor counts tokens that the tower has not",
        TOWER,
        _with("processor_config.json", num_additional_image_tokens=3),
        ("processor_config.json", "18 positions", "(16, 64)", _FROM_ONE),
    ),
    Hostile(
        "the processor makes larger pictures",
        TOWER,
        _with("processor_config.json", image_processor__crop_size={"height": 112, "width": 112}),
        ("processor_config.json", "112", _FROM_ONE),
    ),
    Hostile(
        "the processor merges other patches than the tower",
        GRID,
        _with("processor_config.json", image_processor__merge_size=1),
        ("processor_config.json", "config.json", _FROM_ONE),
    ),
    Hostile(
        "the processor for clips merges other patches than the tower",
        GRID,
        _with("processor_config.json", video_processor__merge_size=4),
        ("processor_config.json", "config.json", "clip", _FROM_ONE),
    ),
    # Chat template.
    Hostile("the template loops", TEXT, _template(_LOOPS), ("chat_template.jinja", "2.0 seconds", _TEMPLATE_FIX)),
    Hostile(
        "the template makes a text of gigabytes",
        TEXT,
        _template("{{ messages[0].content * 10 ** 10 }}"),
        ("chat_template.jinja", "128 MiB", _TEMPLATE_FIX),
    ),
    Hostile(
        "the template reads the environment",
        TEXT,
        _template(_ENVIRON),
        ("chat_template.jinja", "__globals__", _TEMPLATE_FIX),
    ),
    Hostile(
        "the template spells what it reads",
        TOWER,
        _template("{{ ''['__cla' ~ 'ss__'].mro() }}"),
        ("chat_template.jinja", "__class__", _TEMPLATE_FIX),
    ),
    Hostile(
        "the template is no Jinja",
        TEXT,
        _template("{% for m in messages %}"),
        ("chat_template.jinja", "line 1", _TEMPLATE_FIX),
    ),
    Hostile(
        "the template loses pictures",
        TOWER,
        _template("{% for m in messages %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endfor %}"),
        ("chat_template.jinja", "0 placeholders of images", _TEMPLATE_FIX),
    ),
    # LoRA.
    Hostile("the LoRA is for another model", TEXT, _lora_of_another, ("adapter", "256"), arguments=_WITH_LORA),
    Hostile(
        "the LoRA is nested deeply",
        TEXT,
        _all(_lora_of_another, _text("adapter/adapter_config.json", _NESTED)),
        ("adapter_config.json", "not JSON", "save the adapter again"),
        arguments=_WITH_LORA,
    ),
    Hostile(
        "the LoRA is pickled", TEXT, _lora_as_pickle, ("adapter_model.safetensors", "safetensors"), arguments=_WITH_LORA
    ),
)
"""Every one of them is refused with exit code 4, by name of the file, and with what to do."""
