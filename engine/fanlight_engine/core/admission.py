"""What the core refuses before it keeps anything of a request, and in which words. Knows no queues and no tensors.

The front checks most of this as well, with the names of the caller's own fields.
"""

from __future__ import annotations

from fanlight_engine.client import CoreFacts
from fanlight_engine.core.messages import AddRequest, EncodeRequest, MediaInput, Rejected
from fanlight_engine.core.sequence import Sequence
from fanlight_engine.core.spans import refusal_of_spans
from fanlight_engine.errors import Reason
from fanlight_engine.model.sampler import MAX_SUPPRESSED_IDS


def rejected(request: AddRequest | EncodeRequest, reason: Reason, field: str, description: str) -> Rejected:
    """The answer to a request that was refused or failed."""
    return Rejected(request.request_id, reason, field, description)


def refusal_for_its_id(request: AddRequest | EncodeRequest) -> Rejected:
    """The answer to a second request of the same id."""
    return rejected(request, Reason.REQUEST_ID_IN_USE, "request_id", "a request with this id is running")


def refusal_for_the_crowd(
    request: AddRequest | EncodeRequest, waiting: int, max_waiting_requests: int
) -> Rejected | None:
    """The answer to a request that finds the queue full; None while there is room."""
    if waiting < max_waiting_requests:
        return None
    described = f"{waiting} requests are waiting, the limit is {max_waiting_requests}; try again later"
    return Rejected(request.request_id, Reason.OVERLOADED, "", described, retry_after=1.0)


def refusal_of(request: AddRequest, facts: CoreFacts) -> Rejected | None:
    """The answer to a request that could never be computed; None for others."""
    if request.lora and request.lora not in {lora.name for lora in facts.loras}:
        return rejected(request, Reason.MODEL_NOT_FOUND, "model", f"no LoRA adapter {request.lora!r} is loaded")
    sampling, length = request.sampling, len(request.prompt_ids)
    if not length:
        return rejected(request, Reason.EMPTY_PROMPT, "prompt", "the prompt has no tokens")
    if length + sampling.max_new_tokens > facts.context_length:
        described = f"{length} prompt tokens and {sampling.max_new_tokens} new ones, {facts.context_length} fit"
        return rejected(request, Reason.PROMPT_TOO_LONG, "prompt", described)
    for medium in request.media:
        described = _why_it_cannot_be_kept(medium, facts)
        if described is not None:
            return rejected(request, Reason.IMAGE_TOO_LARGE, "prompt", described)
    if sampling.min_new_tokens and len(sampling.end_ids + sampling.stop_token_ids) > MAX_SUPPRESSED_IDS:
        described = f"min_new_tokens works with at most {MAX_SUPPRESSED_IDS} end and stop ids"
        return rejected(request, Reason.SAMPLING_OUT_OF_RANGE, "config.sampling.min_new_tokens", described)
    return None


def refusal_of_sequence(sequence: Sequence, facts: CoreFacts) -> Rejected | None:
    """The answer to a request whose spans of positions could never be computed; None for others."""
    refusal = refusal_of_spans(sequence.spans, sequence.request.media, facts)
    return None if refusal is None else rejected(sequence.request, refusal[0], "prompt", refusal[1])


def refusal_of_encode(request: EncodeRequest, facts: CoreFacts) -> Rejected | None:
    """The answer to an encode request whose embeddings could never be kept; None for others."""
    described = _why_it_cannot_be_kept(request.media, facts)
    return None if described is None else rejected(request, Reason.IMAGE_TOO_LARGE, "media", described)


def _why_it_cannot_be_kept(medium: MediaInput, facts: CoreFacts) -> str | None:
    needed = medium.embedding_rows * facts.embedding_row_bytes
    if needed <= facts.vision_cache_bytes:
        return None
    return (
        f"a {medium.noun} of {medium.embedding_rows} embeddings takes {needed} bytes, which do not fit into the vision "
        f"cache of {facts.vision_cache_bytes}; make it smaller, or raise vision_cache_bytes"
    )
