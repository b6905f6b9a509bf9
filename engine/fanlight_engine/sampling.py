"""Sampling options -> SamplingParams: ranges checked, defaults filled in, lengths fitted to the context.

Knows the checkpoint's facts, and the defaults and limits of the configuration; knows nothing of text, tokenizers or
tensors. What a checkpoint's generation_config.json says is in the configuration already.
Paths in refusals are below the Generation, for example `config.sampling.temperature`.
"""

from __future__ import annotations

import math
import secrets
from typing import TypeVar

from fanlight_engine.checkpoints.checkpoint import Checkpoint
from fanlight_engine.config import EngineConfig
from fanlight_engine.core.messages import SamplingParams
from fanlight_engine.errors import InvalidRequestError, Reason
from fanlight_engine.request import SamplingOptions

GREEDY_BELOW = 1e-5
"""Temperatures below this pick the likeliest token: dividing logits by less would overflow half precision."""
MOST_NEW_TOKENS = 1 << 20
HIGHEST_TEMPERATURE = 100.0
HIGHEST_SEED = (1 << 64) - 1
HIGHEST_REPETITION_PENALTY = 16.0
"""The lowest is 1 / 16. transformers takes anything above 0, but much more than twofold makes only noise, and logits
that are divided by next to nothing overflow. Both bounds are the same number in the contract's 32 bits."""
HIGHEST_PENALTY = 2.0
"""Of presence and frequency, either way: OpenAI's range."""

Number = TypeVar("Number", int, float)


def check(options: SamplingOptions, checkpoint: Checkpoint, config: EngineConfig) -> None:
    """Refuse what can be judged before the prompt is known. Raises InvalidRequestError naming the field."""
    _within("max_new_tokens", options.max_new_tokens, 1, MOST_NEW_TOKENS)
    _within("min_new_tokens", options.min_new_tokens, 0, MOST_NEW_TOKENS)
    _within("temperature", options.temperature, 0.0, HIGHEST_TEMPERATURE)
    _within("top_p", options.top_p, 0.0, 1.0, above_low=True)
    _within("top_k", options.top_k, 0, checkpoint.vocab_size)
    _within("min_p", options.min_p, 0.0, 1.0)
    repetition_penalty, highest = options.repetition_penalty, HIGHEST_REPETITION_PENALTY
    _within("repetition_penalty", repetition_penalty, 1 / highest, highest)
    _within("presence_penalty", options.presence_penalty, -HIGHEST_PENALTY, HIGHEST_PENALTY)
    _within("frequency_penalty", options.frequency_penalty, -HIGHEST_PENALTY, HIGHEST_PENALTY)
    _within("seed", options.seed, 0, HIGHEST_SEED)
    if options.max_new_tokens is not None:
        _within("min_new_tokens", options.min_new_tokens, 0, options.max_new_tokens, high_name="max_new_tokens")
    _check_stop_strings(options.stop, config)
    _check_stop_token_ids(options.stop_token_ids, checkpoint, config)


def resolve(
    options: SamplingOptions,
    checkpoint: Checkpoint,
    prompt_tokens: int,
    context_length: int,
    logprobs: bool,
    config: EngineConfig | None = None,
) -> SamplingParams:
    """The parameters of one output after a prompt of `prompt_tokens` (expanded) in a context of `context_length`.

    An unset seed is drawn here, so that it can be reported. Raises InvalidRequestError naming the field.
    """
    config = config or EngineConfig()
    check(options, checkpoint, config)
    refuse_too_long(prompt_tokens, context_length, checkpoint.takes_images)
    remaining = context_length - prompt_tokens
    asked = asked_length(options, config)
    max_new_tokens = remaining if asked is None else min(asked, remaining)
    temperature = _first(options.temperature, config.default_temperature)
    return SamplingParams(
        max_new_tokens=max_new_tokens,
        min_new_tokens=min(_first(options.min_new_tokens, 0), max_new_tokens),
        temperature=0.0 if temperature < GREEDY_BELOW else float(temperature),
        top_p=float(_first(options.top_p, config.default_top_p)),
        top_k=min(int(_first(options.top_k, config.default_top_k)), checkpoint.vocab_size),
        min_p=float(_first(options.min_p, config.default_min_p)),
        repetition_penalty=float(_first(options.repetition_penalty, config.default_repetition_penalty)),
        presence_penalty=float(_first(options.presence_penalty, config.default_presence_penalty)),
        frequency_penalty=float(_first(options.frequency_penalty, config.default_frequency_penalty)),
        seed=secrets.randbits(63) if options.seed is None else options.seed,
        end_ids=() if options.ignore_eos else checkpoint.end_ids,
        stop_token_ids=options.stop_token_ids,
        logprobs=logprobs,
        context_limited=asked is None or asked > remaining,
    )


def asked_length(options: SamplingOptions, config: EngineConfig) -> int | None:
    """Most new tokens, as the request or else the configuration says; None is the rest of the context.

    A default gives way to a request that wants at least more than that.
    """
    if options.max_new_tokens is not None or not config.default_max_new_tokens:
        return options.max_new_tokens
    return max(config.default_max_new_tokens, options.min_new_tokens or 0)


def refuse_too_long(prompt_tokens: int, context_length: int, may_have_media: bool) -> None:
    """Raise InvalidRequestError when a prompt leaves no room for a single new token."""
    if prompt_tokens >= context_length:
        with_media = or_less = ""
        if may_have_media:
            with_media, or_less = " with its media", ", or show less of its media (max_tokens, num_frames)"
        raise InvalidRequestError(
            "prompt",
            f"it has {prompt_tokens} tokens{with_media}, the context holds {context_length} for prompt and answer; "
            f"shorten it to at most {context_length - 1}{or_less}",
            Reason.PROMPT_TOO_LONG,
        )


def _first(asked: Number | None, default: Number) -> Number:
    return default if asked is None else asked


def _within(
    name: str,
    value: float | None,
    low: float,
    high: float,
    above_low: bool = False,
    high_name: str = "",
) -> None:
    """`value` must be a finite number in [low, high], or (low, high] with `above_low`; None was not asked for."""
    if value is None:
        return
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if is_number and low <= value <= high and not (above_low and value == low):
        return
    bounds = f"{'above ' if above_low else ''}{low} to {high_name + ' = ' if high_name else ''}{high}"
    raise InvalidRequestError(
        f"config.sampling.{name}", f"got {value!r}, the range is {bounds}", Reason.SAMPLING_OUT_OF_RANGE
    )


def _check_stop_strings(stops: tuple[str, ...], config: EngineConfig) -> None:
    if len(stops) > config.max_stop_strings:
        raise InvalidRequestError(
            "config.sampling.stop",
            f"got {len(stops)} stop strings, at most {config.max_stop_strings} are allowed",
            Reason.SAMPLING_OUT_OF_RANGE,
        )
    for index, stop in enumerate(stops):
        if not 1 <= len(stop) <= config.max_stop_string_characters:
            got = "an empty string" if not stop else f"{len(stop)} characters"
            raise InvalidRequestError(
                f"config.sampling.stop[{index}]",
                f"got {got}, the range is 1 to {config.max_stop_string_characters} characters",
                Reason.SAMPLING_OUT_OF_RANGE,
            )


def _check_stop_token_ids(ids: tuple[int, ...], checkpoint: Checkpoint, config: EngineConfig) -> None:
    if len(ids) > config.max_stop_token_ids:
        raise InvalidRequestError(
            "config.sampling.stop_token_ids",
            f"got {len(ids)} stop token ids, at most {config.max_stop_token_ids} are allowed",
            Reason.SAMPLING_OUT_OF_RANGE,
        )
    for index, token_id in enumerate(ids):
        if not 0 <= token_id < checkpoint.vocab_size:
            raise InvalidRequestError(
                f"config.sampling.stop_token_ids[{index}]",
                f"got {token_id}, the vocabulary has ids 0 to {checkpoint.vocab_size - 1}",
                Reason.TOKEN_OUT_OF_RANGE,
            )
