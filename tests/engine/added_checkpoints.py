"""The worked example of docs/adding-a-model.md: all that its family took besides a row of the table.

A random-weight checkpoint, made as those in `checkpoints` are.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformers import CLIPImageProcessor, LlavaProcessor, VipLlavaConfig, VipLlavaForConditionalGeneration

from tests.engine.checkpoints import clip_config, llava_text_config, llava_tokenizer, save_model

# Roles behind three number signs; all pictures of a message first, texts after them.
VIPLLAVA_TEMPLATE = """\
{%- for message in messages %}
    {%- if message['role'] == 'system' %}
        {{- message['content'][0]['text'] }}
    {%- else %}
        {{- '###Human: ' if message['role'] == 'user' else '###Assistant: ' }}
        {%- for part in message['content'] | selectattr('type', 'equalto', 'image') %}
            {{- '<image>\\n' }}
        {%- endfor %}
        {%- for part in message['content'] | selectattr('type', 'equalto', 'text') %}
            {{- part['text'] }}
        {%- endfor %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '###Assistant:' }}
{%- endif %}
"""


def make_vipllava(directory: Path) -> Path:
    """A ViP-LLaVA: a LLaVA that projects the features of several layers of its tower beside each other."""
    tokenizer: Any = llava_tokenizer()
    config = VipLlavaConfig(
        text_config=llava_text_config(tokenizer),
        vision_config=clip_config(),
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
        image_seq_length=16,
        vision_feature_layer=[-1, -2, 1],
    )
    LlavaProcessor(
        image_processor=CLIPImageProcessor(size={"shortest_edge": 56}, crop_size={"height": 56, "width": 56}),
        tokenizer=tokenizer,
        patch_size=14,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=VIPLLAVA_TEMPLATE,
    ).save_pretrained(directory)
    save_model(VipLlavaForConditionalGeneration, config, directory, eos=("</s>",), tokenizer=tokenizer)
    return Path(directory)


MODELS: dict[str, Callable[[Path], Path]] = {"vipllava": make_vipllava}
"""How to make it, given a place to make it in."""
