"""SmolLM2-135M computes what transformers computes.

`HEADRACE_REFS` is the folder of the reference values, `HEADRACE_SMOLLM2` that of the model which
`examples/smollm2/build.py` made (default: where it puts it).
"""

import json
import os
from pathlib import Path

import pytest
from support import real_weights
from support.real_weights import REFS

from models.chat import chat_format
from schemas.messages import Message

MODEL = Path(os.environ.get("HEADRACE_SMOLLM2", Path(__file__).parents[2] / "examples/smollm2/model"))
STEM = "smollm2-135m-instruct"

pytestmark = real_weights.needed(STEM, MODEL, "examples/smollm2/build.py")


@pytest.fixture(scope="module")
def model() -> real_weights.Model:
    return real_weights.load(MODEL)


@pytest.fixture(scope="module")
def references() -> list[real_weights.Reference]:
    return real_weights.read_references(STEM)


def test_log_probs_equal_those_of_transformers(model, references):
    assert real_weights.logprob_gap(model, references) < 1e-3


def test_logits_equal_those_of_transformers(model, references):
    assert real_weights.logit_gap(model, references) < 1e-3


def test_greedy_continuations_equal_those_of_transformers(model, references):
    for one in references:
        wanted = one["greedy"].tolist()
        assert real_weights.continued(model, one["ids"].tolist(), len(wanted)) == wanted


def test_chat_prompts_are_tokenized_as_by_the_models_template(references):
    tokenizer = real_weights.tokenizer_in(MODEL)
    texts = json.loads((REFS / f"{STEM}.json").read_text())
    written = chat_format(tokenizer, [])
    for one, text in zip(references, texts, strict=False):
        if text.get("chat"):
            assert written.prompt([Message("user", text["prompt"])], []) == one["ids"].tolist()
            assert tokenizer.decode(one["greedy"].tolist()) == text["text"]
