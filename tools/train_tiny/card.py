"""The exported folder's account of itself: `evaluation.json` for programs and README.md, the model card, for people.

Export records how the model was made; evaluation adds what it scored.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tools.train_tiny.cases import BARS

_MEANINGS = {
    "colour": "colour of a shape or of several equal ones",
    "position": "which ninth of the picture a shape lies in",
    "digit": "a handwritten digit that was held out of training",
    "shape": "circle, square, triangle, star or cross",
    "count": "one to five equal shapes",
    "pair": "colour, shape, position and number of two different shapes",
    "describe": "a short description of any of these pictures",
    "two_pictures": "describing the first or the second of two pictures",
    "small_talk": "questions without a picture, phrased as in training",
    "unseen_talk": '"I don\'t know." to thirty other questions, written by hand',
    "conversation": "two or three questions about one picture in turn, hearing its own earlier answers",
}

_CARD = """\
---
library_name: transformers
pipeline_tag: image-text-to-text
license: apache-2.0
language: en
---

# fanlight-tiny

A vision-language model of {parameters:.1f} million parameters for demonstrations and tests of Fanlight. It is
Qwen2.5-VL's architecture in small (native-resolution pictures, M-RoPE), trained from scratch on two CPU cores by
`tools/train_tiny` on drawn scenes and on scikit-learn's handwritten digits. It is real but knows very little: shape,
colour, position and number of simple things, handwritten digits, and a little small talk. To everything else it answers
"I don't know."

```python
from transformers import AutoModelForImageTextToText, AutoProcessor

processor = AutoProcessor.from_pretrained("models/fanlight-tiny")
model = AutoModelForImageTextToText.from_pretrained("models/fanlight-tiny", dtype="float32")
question = [{{"type": "image", "path": "picture.png"}}, {{"type": "text", "text": "What colour is the circle?"}}]
inputs = processor.apply_chat_template(
    [{{"role": "user", "content": question}}],
    add_generation_prompt=True, tokenize=True, return_dict=True, return_tensors="pt",
)
ids = model.generate(**inputs)
print(processor.decode(ids[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True))
```

## Held-out accuracy

Exact matches of greedy answers in fp32 from the {precision} weights of this folder, over {cases} cases of each kind
(for conversations, all turns of {conversations} of them). `evaluation.json` holds the same figures.

| kind | asks for | accuracy | bar |
|---|---|---|---|
{rows}

Pictures are 48 to 160 pixels per side with sides in proportions up to 1 to 2.5. Their seeds are not used in training,
and a fifth of the handwritten digits was never trained on. Questions about pictures are phrased as in training.

## Making

{steps} steps of 33 conversations (the first {vision_steps} of 44 pictures without text) in {minutes:.1f} minutes of
wall time, seed {seed}, stretches thrown away at restarts not counted. While it learned, auxiliary heads read shape,
colour, count, position and digit from the image embeddings; they are not part of the checkpoint. `make train-tiny`
makes it again; `python -m tools.train_tiny.evaluate` measures it.

The run that made this copy was adjusted on the way: the auxiliary targets, the mix of scenes and the learning rate of
the last tenth were changed at restarts. A new run follows the plan in `training.py` from the start and will differ.

## Limits

Bigger pictures are shrunk to at most 25,600 pixels (100 image tokens), smaller ones enlarged to 2,304 (9 tokens).
Photographs and anything else that is not a drawn scene get confident nonsense. The processor accepts videos, but the
model was never taught any.
"""


def record_training(folder: Path, facts: dict[str, Any]) -> None:
    """Writes how the model was made; figures of an earlier model do not hold any more and go."""
    _write(folder, {"training": facts})


def record_accuracy(folder: Path, accuracy: dict[str, float], cases: int, seed: int) -> None:
    """Adds accuracy by kind to evaluation.json and writes the model card."""
    evaluation = json.loads((folder / "evaluation.json").read_text())
    evaluation |= {"cases_per_kind": cases, "seed": seed, "accuracy": accuracy}
    _write(folder, evaluation)
    rows = [f"| {kind} | {_MEANINGS[kind]} | {100 * share:.1f} % | {_bar(kind)} |" for kind, share in accuracy.items()]
    card = _CARD.format(rows="\n".join(rows), cases=cases, conversations=cases // 5, **evaluation["training"])
    (folder / "README.md").write_text(card)


def _bar(kind: str) -> str:
    return f"{100 * BARS[kind]:.0f} %" if kind in BARS else ""


def _write(folder: Path, evaluation: dict[str, Any]) -> None:
    (folder / "evaluation.json").write_text(json.dumps(evaluation, indent=2) + "\n")
