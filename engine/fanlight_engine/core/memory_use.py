"""How much memory a core takes, by part, in plain numbers and in words. Knows neither tensors nor devices."""

from __future__ import annotations

from dataclasses import dataclass

_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Bytes of each part on the device of the model. Weights are what they take there, not what is stored."""

    decoder_bytes: int = 0
    embeddings_bytes: int = 0
    """Token embeddings and language-model head, once where these share their weight."""
    vision_tower_bytes: int = 0
    """Vision tower and projector; 0 for text checkpoints."""
    key_value_bytes: int = 0
    """The paged KV cache."""
    vision_cache_bytes: int = 0
    """Upper bound of the embeddings of pictures and clips that are kept; 0 for text checkpoints."""
    lora_bytes: int = 0
    """Matrices of all LoRA adapters."""
    decode_step_bytes: int = 0
    """Upper bound of what decode steps need that are captured as CUDA graphs; 0 where none are."""

    @property
    def weight_bytes(self) -> int:
        """What cannot be less with other cache sizes."""
        return self.decoder_bytes + self.embeddings_bytes + self.vision_tower_bytes + self.lora_bytes

    @property
    def total_bytes(self) -> int:
        """All parts together."""
        return self.weight_bytes + self.key_value_bytes + self.vision_cache_bytes + self.decode_step_bytes

    def parts(self) -> tuple[tuple[str, int], ...]:
        """Name and bytes of each part that there is."""
        named = (
            ("decoder", self.decoder_bytes),
            ("embeddings and head", self.embeddings_bytes),
            ("vision tower", self.vision_tower_bytes),
            ("LoRA adapters", self.lora_bytes),
            ("KV cache", self.key_value_bytes),
            ("vision cache", self.vision_cache_bytes),
            ("decode graphs", self.decode_step_bytes),
        )
        return tuple((name, count) for name, count in named if count)

    def in_words(self) -> str:
        """`decoder 405 MiB, embeddings and head 108 MiB, KV cache 180 MiB`."""
        return ", ".join(f"{name} {readable_bytes(count)}" for name, count in self.parts())


def readable_bytes(count: int) -> str:
    """Three digits and a unit: 538090408 -> 513 MiB."""
    amount = float(count)
    for unit in _UNITS[:-1]:
        if amount < 1000:
            return _three_digits(amount, unit)
        amount /= 1024
    return _three_digits(amount, _UNITS[-1])


def _three_digits(amount: float, unit: str) -> str:
    if unit == _UNITS[0] or amount >= 100:
        return f"{amount:.0f} {unit}"
    return f"{amount:.1f} {unit}" if amount >= 10 else f"{amount:.2f} {unit}"
