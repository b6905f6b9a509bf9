"""What is handed over to the kernels, as ctypes sees it: the structures of kernels/, field by field."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, Structure, c_float, c_int32, c_int64, c_void_p


class Norm(Structure):
    """`norm` of rows.h."""

    _fields_ = [("weight", c_void_p), ("epsilon", c_float), ("is_centred", c_int32)]


class Matrix(Structure):
    """`matrix` of products_vector.h."""

    _fields_ = [("weights", c_void_p), ("bias", c_void_p), ("outputs", c_int64), ("inputs", c_int64)]


class DecoderLayer(Structure):
    """`decoder_layer` of work.h."""

    _fields_ = [
        ("input", Norm),
        ("query", Norm),
        ("key", Norm),
        ("attention_output", Norm),
        ("mlp_input", Norm),
        ("mlp_output", Norm),
        ("projections", Matrix * 3),
        ("output", Matrix),
        ("gate", Matrix),
        ("up", Matrix),
        ("down", Matrix),
        ("scale", c_float),
        ("soft_cap", c_float),
        ("residual_factor", c_float),
        ("window", c_int32),
        ("activation", c_int32),
        ("rotary", c_int32),
        ("is_adjacent", c_int32),
        ("norms_whole", c_int32),
        ("is_parallel", c_int32),
    ]


class Decoder(Structure):
    """`decoder` of work.h."""

    _fields_ = [
        ("layer_count", c_int64),
        ("hidden", c_int64),
        ("heads", c_int64),
        ("kv_heads", c_int64),
        ("head_dim", c_int64),
        ("intermediate", c_int64),
        ("vocabulary", c_int64),
        ("embedded", c_int64),
        ("embedding_factor", c_float),
        ("input_factor", c_float),
        ("logit_factor", c_float),
        ("logit_cap", c_float),
        ("embeddings", c_void_p),
        ("layers", POINTER(DecoderLayer)),
        ("final", Norm),
        ("head", Matrix),
    ]


class RotaryTable(Structure):
    """`rotary_table` of work.h."""

    _fields_ = [
        ("cosines", c_void_p),
        ("sines", c_void_p),
        ("position_rows", c_void_p),
        ("width", c_int64),
        ("factor", c_int64),
    ]


class Step(Structure):
    """`step` of work.h."""

    _fields_ = [
        ("rows", c_int64),
        ("ids", c_void_p),
        ("embeddings", c_void_p),
        ("slots", c_void_p),
        ("page_tables", c_void_p),
        ("table_rows", c_void_p),
        ("limits", c_void_p),
        ("positions", c_void_p),
        ("kept_from", c_void_p),
        ("page_table_stride", c_int64),
        ("page_size", c_int64),
        ("rotary", POINTER(RotaryTable)),
        ("rotary_count", c_int64),
        ("keys", POINTER(c_void_p)),
        ("values", POINTER(c_void_p)),
        ("features", POINTER(c_void_p)),
        ("feature_count", c_int64),
        ("logits", c_void_p),
        ("states", c_void_p),
        ("logit_stride", c_int64),
        ("kind", c_int64),
        ("threads", c_int64),
        ("queries_are_alone", c_int64),
        ("workspace", c_void_p),
        ("workspace_bytes", c_int64),
    ]


class Linear(Structure):
    """`linear_call` of library.c."""

    _fields_ = [
        ("weights", Matrix),
        ("rows", c_int64),
        ("x_stride", c_int64),
        ("y_stride", c_int64),
        ("kind", c_int64),
        ("threads", c_int64),
        ("x", c_void_p),
        ("y", c_void_p),
        ("wide_y", c_void_p),
        ("factor", c_float),
        ("cap", c_float),
        ("workspace", c_void_p),
        ("workspace_bytes", c_int64),
    ]


class PagedLayer(Structure):
    """`paged_layer` of attention.h."""

    _fields_ = [
        ("keys", c_void_p),
        ("values", c_void_p),
        ("page_size", c_int64),
        ("kv_heads", c_int64),
        ("head_dim", c_int64),
        ("heads", c_int64),
        ("scale", c_float),
        ("soft_cap", c_float),
    ]


class Attention(Structure):
    """`attention_call` of library.c."""

    _fields_ = [
        ("layer", PagedLayer),
        ("count", c_int64),
        ("threads", c_int64),
        ("page_table_stride", c_int64),
        ("page_tables", c_void_p),
        ("table_rows", c_void_p),
        ("first_keys", c_void_p),
        ("limits", c_void_p),
        ("queries", c_void_p),
        ("outputs", c_void_p),
    ]


HANDED_OVER: tuple[type[Structure], ...] = (DecoderLayer, Decoder, Step, RotaryTable, Linear, Attention)
"""In the order of `fanlight_sizes`."""


def sizes() -> list[int]:
    """Bytes of each of them."""
    return [ctypes.sizeof(one) for one in HANDED_OVER]
