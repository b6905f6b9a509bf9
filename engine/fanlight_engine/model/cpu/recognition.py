"""Recognises what a decoder is from its modules and from what it did in one step; never from its name.

Structure is read from the names and types of modules; what a norm or an activation computes is tried out, and so is how
queries are turned. Whatever does not fit raises Unrecognised, and the decoder is left as it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn

from fanlight_engine.model.cpu.facts import (
    DecoderFacts,
    LayerFacts,
    LinearFacts,
    NormFacts,
    RotaryFacts,
    TurnFacts,
    Unrecognised,
)
from fanlight_engine.model.cpu.library import MOST_HEAD_DIM
from fanlight_engine.model.cpu.observation import Observation
from fanlight_engine.model.head import Head
from fanlight_engine.model.lora.rows import AdaptedLinear

_WITHOUT_EFFECT = (nn.Dropout, nn.Identity)
"""Modules that do nothing in eval mode."""
_OF_A_DECODER = {"embed_tokens", "layers", "norm", "rotary_emb"}
_OF_ATTENTION = ({"q_proj", "k_proj", "v_proj", "o_proj"}, {"qkv_proj", "o_proj"})
_OF_AN_MLP = ({"gate_proj", "up_proj", "down_proj"}, {"gate_up_proj", "down_proj"})
_NORMS = ("input", "attention_output", "mlp_input", "mlp_output")
_ARRANGEMENTS: dict[frozenset[str], tuple[str | None, str | None, str | None, str | None]] = {
    frozenset(name for name in names if name): names
    for names in (
        ("input_layernorm", None, "post_attention_layernorm", None),
        (
            "input_layernorm",
            "post_attention_layernorm",
            "pre_feedforward_layernorm",
            "post_feedforward_layernorm",
        ),
        ("input_layernorm", "post_self_attn_layernorm", "post_attention_layernorm", "post_mlp_layernorm"),
        (None, "post_attention_layernorm", None, "post_feedforward_layernorm"),
        ("input_layernorm", None, None, None),
    )
}
"""Which norm of a layer stands where, by the names of those it has; with the first alone it is parallel."""
_ACTIVATIONS = (nn.SiLU(), nn.GELU(approximate="tanh"))
"""In the order of the kernels' numbers."""


def recognise(decoder: Any, head: Head, seen: Observation, kv_heads: int, head_dim: int) -> DecoderFacts:
    """The facts of a decoder and its head. Raises Unrecognised."""
    _refuse_others(_children(decoder), _OF_A_DECODER, "the decoder")
    if head_dim > MOST_HEAD_DIM:
        raise Unrecognised(f"its heads are {head_dim} wide, at most {MOST_HEAD_DIM} are computed")
    used = _Used(decoder)
    facts = DecoderFacts(
        embeddings=used.parameter(decoder.embed_tokens.weight),
        embedding_factor=_scale(decoder.embed_tokens.weight[seen.ids], seen.first_hidden),
        input_factor=_scale(decoder.embed_tokens(seen.ids), seen.first_hidden),
        layers=tuple(_layer(layer, index, used, seen) for index, layer in enumerate(decoder.layers)),
        final=used.norm(decoder.norm),
        head=used.linear(head.projection),
        logit_factor=head.scale,
        logit_cap=head.soft_cap or 0.0,
        heads=seen.turned[0].shape[1],
        kv_heads=kv_heads,
        head_dim=head_dim,
        rotary_calls=tuple(seen.rotary_calls),
    )
    used.refuse_leftovers()
    return facts


class _Used:
    """Takes parameters out of modules, and knows afterwards which were left."""

    def __init__(self, decoder: nn.Module) -> None:
        self._left = {id(parameter): name for name, parameter in decoder.named_parameters()}
        self.dtype = next(decoder.parameters()).dtype

    def parameter(self, weight: torch.Tensor) -> torch.Tensor:
        """The very memory of a parameter of the decoder's number type."""
        self._left.pop(id(weight), None)
        is_plain = type(weight) in (nn.Parameter, torch.Tensor) and weight.is_contiguous()
        if not is_plain or weight.dtype != self.dtype or weight.device.type != "cpu":
            raise Unrecognised(f"some of its weights are no plain {self.dtype} in the memory of the CPU")
        return weight.detach()

    def linear(self, module: nn.Module) -> LinearFacts:
        """A linear module; of an adapted one what it is without adapters."""
        if isinstance(module, AdaptedLinear):
            module = module.base
        if not isinstance(module, nn.Linear) or type(module).forward is not nn.Linear.forward:
            raise Unrecognised(f"it has a {type(module).__name__} where a linear module is computed")
        bias = None if module.bias is None else self.parameter(module.bias).float().contiguous()
        return LinearFacts(self.parameter(module.weight), bias)

    def parts(self, module: nn.Module, widths: Sequence[int]) -> list[LinearFacts]:
        """A linear module whose outputs are those of several, one behind the other."""
        whole = self.linear(module)
        if whole.weight.shape[0] != sum(widths):
            raise Unrecognised(f"it has a fused projection of {whole.weight.shape[0]} outputs, not {sum(widths)}")
        biases = [None] * len(widths) if whole.bias is None else whole.bias.split(list(widths))
        return [LinearFacts(*both) for both in zip(whole.weight.split(list(widths)), biases, strict=True)]

    def norm(self, module: nn.Module) -> NormFacts:
        """A norm, by what it computes; adapters add nothing to it."""
        return norm_facts(module, self.parameter(_weight_of(module)))

    def refuse_leftovers(self) -> None:
        """Raise Unrecognised where the decoder has parameters that nobody took."""
        if self._left:
            raise Unrecognised(f"it has {next(iter(self._left.values()))}, which the kernels know nothing of")


def norm_facts(module: nn.Module, weight: torch.Tensor) -> NormFacts:
    """What a norm computes, found by trying it on random rows, small ones too, so that its epsilon counts."""
    epsilon = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    if not isinstance(epsilon, float) or any(True for _ in module.children()):
        raise Unrecognised(f"its norm {type(module).__name__} has no epsilon")
    generator = torch.Generator().manual_seed(3)
    rows = torch.randn(8, weight.shape[0], generator=generator) * torch.logspace(-4, 1, 8)[:, None] + 0.001
    rows = rows.to(weight.dtype)
    computed = module(rows).float()
    for is_centred in (False, True):
        for added in (0.0, 1.0):
            facts = NormFacts((weight.float() + added).contiguous(), epsilon, is_centred)
            if _agrees(normalised(rows.float(), facts), computed, weight.dtype):
                return facts
    raise Unrecognised(f"its norm {type(module).__name__} computes something else")


def normalised(rows: torch.Tensor, norm: NormFacts) -> torch.Tensor:
    """Rows [..., width] float32 as the kernels normalise them."""
    if norm.is_centred:
        rows = rows - rows.mean(-1, keepdim=True)
    return rows * torch.rsqrt(rows.square().mean(-1, keepdim=True) + norm.epsilon) * norm.weight


def _layer(layer: Any, index: int, used: _Used, seen: Observation) -> LayerFacts:
    children = _children(layer)
    norms = frozenset(children - {"self_attn", "mlp"})
    if norms not in _ARRANGEMENTS or not {"self_attn", "mlp"} <= children:
        raise Unrecognised(f"its layers hold {', '.join(sorted(children))}, an arrangement that is not known")
    names = dict(zip(_NORMS, _ARRANGEMENTS[norms], strict=True))
    standing = {place: used.norm(getattr(layer, name)) if name else None for place, name in names.items()}
    asked = seen.attention[index]
    gate, up, down, activation = _mlp(layer.mlp, used)
    query, key, are_whole = _head_norms(layer.self_attn, used, seen.turned[index].shape[-1])
    return LayerFacts(
        **standing,
        query=query,
        key=key,
        projections=_projections(layer.self_attn, used, seen.turned[index]),
        output=used.linear(layer.self_attn.o_proj),
        gate=gate,
        up=up,
        down=down,
        activation=activation,
        scale=asked.scale,
        soft_cap=asked.soft_cap or 0.0,
        window=asked.sliding_window or 0,
        turn=_turn(index, seen, layer.self_attn),
        norms_whole=are_whole,
        residual_factor=float(getattr(layer, "residual_multiplier", 1.0)),
        is_parallel=names["attention_output"] is None and names["mlp_input"] is None and names["mlp_output"] is None,
    )


def _projections(attention: Any, used: _Used, queries: torch.Tensor) -> Any:
    children = _children(attention) - {"q_norm", "k_norm", "rotary_emb"}
    if children not in _OF_ATTENTION:
        raise Unrecognised(f"its attention holds {', '.join(sorted(children))}")
    if "qkv_proj" not in children:
        return tuple(used.linear(getattr(attention, name)) for name in ("q_proj", "k_proj", "v_proj"))
    width = queries.shape[1] * queries.shape[2]
    beside = (attention.qkv_proj.weight.shape[0] - width) // 2
    return tuple(used.parts(attention.qkv_proj, (width, beside, beside)))


def _head_norms(attention: Any, used: _Used, head_dim: int) -> tuple[NormFacts | None, NormFacts | None, bool]:
    if not hasattr(attention, "q_norm"):
        return None, None, False
    query, key = used.norm(attention.q_norm), used.norm(attention.k_norm)
    are_whole = query.weight.shape[0] != head_dim
    if are_whole != (key.weight.shape[0] != head_dim):
        raise Unrecognised("its queries are normalised otherwise than its keys")
    return query, key, are_whole


def _mlp(mlp: Any, used: _Used) -> tuple[LinearFacts, LinearFacts, LinearFacts, int]:
    children = {name for name in _children(mlp) if not name.startswith("act")}
    activation = getattr(mlp, "act_fn", getattr(mlp, "activation_fn", None))
    if children not in _OF_AN_MLP or activation is None:
        raise Unrecognised(f"its MLP holds {', '.join(sorted(_children(mlp)))}")
    down = used.linear(mlp.down_proj)
    if "gate_up_proj" in children:
        gate, up = used.parts(mlp.gate_up_proj, [down.weight.shape[1]] * 2)
    else:
        gate, up = used.linear(mlp.gate_proj), used.linear(mlp.up_proj)
    return gate, up, down, _activation_number(activation)


def _activation_number(activation: Any) -> int:
    numbers = torch.linspace(-12, 12, 4001)
    for number, known in enumerate(_ACTIVATIONS):
        if torch.allclose(activation(numbers), known(numbers), rtol=1e-5, atol=1e-6):
            return number
    raise Unrecognised(f"its activation {type(activation).__name__} is neither SiLU nor GELU (tanh)")


def _turn(index: int, seen: Observation, attention: Any) -> TurnFacts | None:
    """How the queries of a layer came to be what attention got."""
    turned, dtype = seen.turned[index].float(), seen.turned[index].dtype
    for before in _heads_before(seen.unturned[index].float(), *turned.shape):
        if _agrees(before, turned, dtype):
            return None
        for call, (cosines, sines) in enumerate(seen.rotary_results):
            for table in _tables(call, cosines, attention):
                cosine, sine = columns_of(cosines, table).float(), columns_of(sines, table).float()
                for is_adjacent in (False, True):
                    if _agrees(turned_by(before, cosine, sine, is_adjacent), turned, dtype):
                        return TurnFacts(table, is_adjacent)
    raise Unrecognised(f"the queries of its layer {index} are turned in a way that is not known")


def _heads_before(output: torch.Tensor, rows: int, heads: int, head_dim: int) -> Iterator[torch.Tensor]:
    """[rows, heads, head_dim], in each way that the output of a projection or a norm may be meant."""
    if output.dim() == 2:
        yield output[:, : heads * head_dim].reshape(rows, heads, head_dim)
    elif output.shape == (rows, heads, head_dim):
        yield output
    if output.shape == (heads, rows, head_dim):
        yield output.transpose(0, 1)


def _tables(call: int, cosines: torch.Tensor, attention: Any) -> list[RotaryFacts]:
    """Tables that a result [(position rows,) 1, B, width] of the rotary module may stand for."""
    if cosines.dim() == 3:
        return [RotaryFacts(call, 1), RotaryFacts(call, 2)]
    parameters = getattr(attention, "rope_parameters", None) or getattr(attention.config, "rope_parameters", None) or {}
    sections = [int(one) for one in parameters.get("mrope_section", ())] * 2
    if sum(sections) != cosines.shape[-1]:
        return []
    rows = [index % cosines.shape[0] for index, width in enumerate(sections) for _ in range(width)]
    return [RotaryFacts(call, 1, tuple(rows))]


def columns_of(cosines: torch.Tensor, table: RotaryFacts) -> torch.Tensor:
    """[B, width] of a result of the rotary module."""
    width = cosines.shape[-1]
    if table.position_rows:
        rows = torch.tensor(table.position_rows)
        return cosines[:, 0][rows, :, torch.arange(width)].transpose(0, 1)
    return cosines[0][:, torch.arange(width) // table.repeats]


def turned_by(heads: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor, is_adjacent: bool) -> torch.Tensor:
    """Heads [B, heads, head_dim] as the kernels turn the first columns of them."""
    width = cosine.shape[-1]
    inside, behind = heads[..., :width], heads[..., width:]
    if is_adjacent:
        across = torch.stack((-inside[..., 1::2], inside[..., 0::2]), dim=-1).flatten(-2)
    else:
        across = torch.cat((-inside[..., width // 2 :], inside[..., : width // 2]), dim=-1)
    return torch.cat((inside * cosine[:, None] + across * sine[:, None], behind), dim=-1)


def _scale(before: torch.Tensor, after: torch.Tensor) -> float:
    """By what embeddings are multiplied until the first layer gets them, rounded to the number type if need be."""
    measured = ((after.double() * before.double()).sum() / before.double().square().sum()).item()
    if not _agrees((before * measured).float(), after.float(), before.dtype):
        raise Unrecognised("its first layer gets something else than scaled embeddings")
    likely = (1.0, torch.tensor(measured, dtype=before.dtype).item(), round(measured, 4))
    exact = (factor for factor in likely if torch.equal((before.float() * factor).to(before.dtype), after))
    return next(exact, measured)


def _agrees(ours: torch.Tensor, theirs: torch.Tensor, dtype: torch.dtype) -> bool:
    """Whether they differ by no more than rounding to the number type does."""
    if ours.shape != theirs.shape:
        return False
    difference = (ours - theirs).norm(dim=-1) / theirs.norm(dim=-1).clamp_min(1e-30)
    return bool((difference <= 4 * torch.finfo(dtype).eps).all())


def _weight_of(module: nn.Module) -> torch.Tensor:
    weight = getattr(module, "weight", None)
    if not isinstance(weight, torch.Tensor) or getattr(module, "bias", None) is not None:
        raise Unrecognised(f"its {type(module).__name__} is no norm with one weight")
    return weight


def _children(module: nn.Module) -> set[str]:
    return {name for name, child in module.named_children() if not isinstance(child, _WITHOUT_EFFECT)}


def _refuse_others(children: set[str], known: set[str], where: str) -> None:
    if children != known:
        raise Unrecognised(f"{where} holds {', '.join(sorted(children))}, not {', '.join(sorted(known))}")
