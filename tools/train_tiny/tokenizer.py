"""The byte-level BPE tokenizer, trained on the questions and answers themselves, and the chat template.

Both follow Qwen2.5-VL's conventions: special tokens, message format, splitting pattern.
"""

from __future__ import annotations

import random

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import Qwen2Tokenizer

from tools.train_tiny.conversations import SYSTEM_PROMPTS, about_one_picture, about_two_pictures
from tools.train_tiny.small_talk import KNOWN, NO_PICTURE, UNKNOWN, small_talk

END_OF_TEXT, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
VISION_START, VISION_END = "<|vision_start|>", "<|vision_end|>"
IMAGE_PAD, VIDEO_PAD = "<|image_pad|>", "<|video_pad|>"
SPECIAL_TOKENS = (END_OF_TEXT, TURN_START, TURN_END, VISION_START, VISION_END, IMAGE_PAD, VIDEO_PAD)
VOCABULARY_SIZE = 1024
LONGEST_PROMPT = 4096
_SPLITTING_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

CHAT_TEMPLATE = """\
{%- for message in messages %}
    {{- '<|im_start|>' + message['role'] + '\\n' }}
    {%- if message['content'] is string %}
        {{- message['content'] }}
    {%- else %}
        {%- for part in message['content'] %}
            {%- if part['type'] == 'image' or 'image' in part or 'image_url' in part %}
                {{- '<|vision_start|><|image_pad|><|vision_end|>' }}
            {%- elif part['type'] == 'video' or 'video' in part %}
                {{- '<|vision_start|><|video_pad|><|vision_end|>' }}
            {%- elif 'text' in part %}
                {{- part['text'] }}
            {%- endif %}
        {%- endfor %}
    {%- endif %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""


def train_tokenizer(seed: int) -> Qwen2Tokenizer:
    """Learns VOCABULARY_SIZE - 7 byte-level pieces, all 256 bytes among them, and appends the special tokens."""
    learner = Tokenizer(models.BPE())
    learner.normalizer = normalizers.NFC()
    learner.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(pattern=Regex(_SPLITTING_PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    learner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_SIZE - len(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    learner.train_from_iterator(_corpus(seed), trainer)
    learner.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS])
    return _as_qwen_tokenizer(learner)


def _as_qwen_tokenizer(learner: Tokenizer) -> Qwen2Tokenizer:
    return Qwen2Tokenizer(
        tokenizer_object=learner,
        unk_token=None,  # pyright: ignore[reportArgumentType]  # all bytes are known
        bos_token=None,
        eos_token=TURN_END,
        pad_token=END_OF_TEXT,
        extra_special_tokens=[TURN_START, *SPECIAL_TOKENS[3:]],
        model_max_length=LONGEST_PROMPT,
        clean_up_tokenization_spaces=False,
        chat_template=CHAT_TEMPLATE,
    )


def _corpus(seed: int) -> list[str]:
    rng = random.Random(f"corpus/{seed}")
    texts = [*SYSTEM_PROMPTS, *KNOWN, UNKNOWN, NO_PICTURE, "user\n", "system\n", "assistant\n"]
    turns = [turn for _ in range(1500) for turn in about_one_picture(rng, (48, 48)).turns]
    turns += [turn for _ in range(200) for turn in about_two_pictures(rng, ((48, 48), (48, 48))).turns]
    turns += [small_talk(rng) for _ in range(1500)]
    return texts + [text for turn in turns for text in (turn.question, turn.answer)]
