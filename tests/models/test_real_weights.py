"""SmolLM2 135M and Gemma 3 270M compute what transformers computes, and read text as it does.

`HEADRACE_REFS` is the folder of the reference values. `HEADRACE_SMOLLM2` is that of the model which
`examples/smollm2/build.py` made (default: where it puts it), `HEADRACE_GEMMA3` that of the one which
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
from schemas.messages import Message

SMOLLM2 = Path(os.environ.get("HEADRACE_SMOLLM2", Path(__file__).parents[2] / "examples/smollm2/model"))
SMOLLM2_STEM = "smollm2-135m-instruct"
GEMMA3 = Path(os.environ.get("HEADRACE_GEMMA3", "/nonexistent"))
GEMMA3_STEM = "gemma3-270m"
needs_smollm2 = real_weights.needed(SMOLLM2_STEM, SMOLLM2, "examples/smollm2/build.py")
needs_gemma3 = real_weights.needed(GEMMA3_STEM, GEMMA3, "tests/support/build_gemma3.py")


@pytest.fixture(
    scope="module",
    params=[
        pytest.param((SMOLLM2_STEM, SMOLLM2), id="smollm2", marks=needs_smollm2),
        pytest.param((GEMMA3_STEM, GEMMA3), id="gemma3", marks=needs_gemma3),
    ],
)
def case(request) -> tuple[real_weights.Model, list[real_weights.Reference]]:
    stem, folder = request.param
    return real_weights.load(folder), real_weights.read_references(stem)


def test_log_probs_equal_those_of_transformers(case):
    assert real_weights.logprob_gap(*case) < 1e-3


def test_logits_equal_those_of_transformers(case):
    assert real_weights.logit_gap(*case) < 1e-3


def test_greedy_continuations_equal_those_of_transformers(case):
    model, references = case
    for one in references:
        wanted = one["greedy"].tolist()
        assert real_weights.continued(model, one["ids"].tolist(), len(wanted)) == wanted


@pytest.mark.parametrize("folder", [pytest.param(SMOLLM2, id="smollm2", marks=needs_smollm2)])
def test_smollm2_s_chat_prompts_are_tokenized_as_by_its_template(folder):
    tokenizer = real_weights.tokenizer_in(folder)
    texts = json.loads((REFS / f"{SMOLLM2_STEM}.json").read_text())
    written = chat_format(tokenizer, [])
    for one, text in zip(real_weights.read_references(SMOLLM2_STEM), texts, strict=False):
        if text.get("chat"):
            assert written.prompt([Message("user", text["prompt"])], []) == one["ids"].tolist()
            assert tokenizer.decode(one["greedy"].tolist()) == text["text"]


@pytest.mark.parametrize("folder", [pytest.param(GEMMA3, id="gemma3", marks=needs_gemma3)])
def test_gemma_3_s_text_is_tokenized_as_for_the_references(folder):
    tokenizer = real_weights.tokenizer_in(folder)
    texts = json.loads((REFS / f"{GEMMA3_STEM}.json").read_text())
    assert isinstance(chat_format(tokenizer, []), GemmaFormat)
    for one, text in zip(real_weights.read_references(GEMMA3_STEM), texts, strict=False):
        assert [tokenizer.special("<bos>"), *tokenizer.encode(text["prompt"])] == one["ids"].tolist()
        assert tokenizer.decode(one["greedy"].tolist()) == text["text"]
