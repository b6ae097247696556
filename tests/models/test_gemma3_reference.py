"""Gemma 3 270M computes what transformers computes.

`HEADRACE_REFS` is the folder of the reference values, `HEADRACE_GEMMA3` that of the model which
`tests/support/build_gemma3.py` made; read there what binds whoever uses these weights.
"""

import json
import os
from pathlib import Path

import pytest
from support import real_weights
from support.real_weights import REFS

from models.chat import chat_format
from models.chat_gemma import GemmaFormat

MODEL = Path(os.environ.get("HEADRACE_GEMMA3", "/nonexistent"))
STEM = "gemma3-270m"

pytestmark = real_weights.needed(STEM, MODEL, "tests/support/build_gemma3.py")


@pytest.fixture(scope="module")
def model() -> real_weights.Model:
    return real_weights.load(MODEL)


@pytest.fixture(scope="module")
def references() -> list[real_weights.Reference]:
    return real_weights.read_references(STEM)


def test_gemma_3_s_log_probs_equal_those_of_transformers(model, references):
    assert real_weights.logprob_gap(model, references) < 1e-3


def test_gemma_3_s_logits_equal_those_of_transformers(model, references):
    assert real_weights.logit_gap(model, references) < 1e-3


def test_gemma_3_s_greedy_continuations_equal_those_of_transformers(model, references):
    for one in references:
        wanted = one["greedy"].tolist()
        assert real_weights.continued(model, one["ids"].tolist(), len(wanted)) == wanted


def test_gemma_3_s_text_is_tokenized_as_for_the_references(references):
    tokenizer = real_weights.tokenizer_in(MODEL)
    assert isinstance(chat_format(tokenizer, []), GemmaFormat)
    for one, text in zip(references, json.loads((REFS / f"{STEM}.json").read_text()), strict=False):
        assert [tokenizer.special("<bos>"), *tokenizer.encode(text["prompt"])] == one["ids"].tolist()
        assert tokenizer.decode(one["greedy"].tolist()) == text["text"]
