"""TensorData to torch tensors and back: what numpy alone cannot do, since it has no bfloat16."""

from __future__ import annotations

import torch

from fanlight_engine.tensor_data import ITEM_BYTES, TensorData


def tensor_of(data: TensorData) -> torch.Tensor:
    """The tensor that was sent as bytes; a copy, since messages are immutable. Raises ValueError when it is none."""
    if data.dtype not in ITEM_BYTES:
        raise ValueError(f"number type {data.dtype!r} is none of {', '.join(ITEM_BYTES)}")
    if len(data.data) != data.expected_bytes:
        raise ValueError(f"{len(data.data)} bytes for {data.dtype} {data.shape}, which takes {data.expected_bytes}")
    dtype = getattr(torch, data.dtype)
    if not data.data:
        return torch.empty(data.shape, dtype=dtype)
    return torch.frombuffer(bytearray(data.data), dtype=dtype).reshape(data.shape)


def data_of(tensor: torch.Tensor) -> TensorData:
    """The tensor as plain bytes, from whatever device it is on."""
    values = tensor.detach().cpu().contiguous()
    name = str(values.dtype).removeprefix("torch.")
    assert name in ITEM_BYTES, name
    return TensorData(name, tuple(values.shape), values.flatten().view(torch.uint8).numpy().tobytes())
