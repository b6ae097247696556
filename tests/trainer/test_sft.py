"""Supervised warm-ups: what is trained of a demonstration, the order of batches, and the stage's process."""

import argparse
import hashlib
import json

import numpy as np
import pytest
from support.protocol import config

from models.chat import chat_format
from models.pure import flatten
from models.stored import load_weights
from models.tokenizer import ByteTokenizer
from schemas import data, keys
from schemas.config import Architecture, Model
from schemas.errors import RequestError, RunStopped
from schemas.manifest import StageManifest, WarmUpSpec
from schemas.messages import ToolSpec
from schemas.optimizer import Optimizer
from schemas.warm_ups import SFT
from storage.open import open_store
from storage.rows import read_demonstrations
from trainer import warm_up
from trainer.packing import padded
from trainer.sft_data import collate, order
from trainer.streams import encode, encode_all

CALCULATOR = {
    "name": "calculator",
    "description": "",
    "parameters": {"type": "object", "properties": {"expression": {"type": "string"}}},
}


def conversation(question, answer):
    call = {"function": {"name": "calculator", "arguments": {"expression": question}}}
    return {
        "messages": [
            {"role": "user", "content": f"{question}=?"},
            {"role": "assistant", "tool_calls": [call]},
            {"role": "tool", "content": answer},
            {"role": "assistant", "content": answer},
        ],
        "tools": [CALCULATOR],
    }


def test_only_what_the_assistant_says_is_trained():
    tokenizer = ByteTokenizer()
    shown = data.demonstration(conversation("4*7", "28"), "demos line 1")
    tokens, mask = encode(shown, chat_format(tokenizer, shown.tools))
    end, call = tokenizer.special("<|end|>"), tokenizer.special("<|call|>")
    trained = [t for t, m in zip(tokens, mask, strict=True) if m]
    assert trained == [call, *b"4*7", end, *b"28", end]


def test_a_demonstration_is_the_stream_of_an_episode():
    """Prompt, sampled turn, continuation, sampled turn: token by token what a rollout would feed and sample."""
    tokenizer = ByteTokenizer()
    shown = data.demonstration(conversation("4*7", "28"), "demos line 1")
    chat = chat_format(tokenizer, shown.tools)
    user, called, result, answer = shown.messages
    stream = chat.prompt([user], shown.tools) + chat.assistant(called) + chat.continuation([result])
    assert encode(shown, chat)[0] == stream + chat.assistant(answer)
    assert ToolSpec(**CALCULATOR) == shown.tools[0]


def test_a_long_demonstration_is_named_by_its_line():
    raw = "\n\n".join(json.dumps(conversation(q, "1")) for q in ("1*1", "1111111111*1")).encode()
    shown = read_demonstrations(raw, "jsonl", "demos.jsonl")
    assert len(encode_all(shown, ByteTokenizer(), 64)) == 2
    with pytest.raises(RequestError, match=r"demos.jsonl line 3: the demonstration has \d+ tokens, more than"):
        encode_all(shown, ByteTokenizer(), 24)


def test_two_assistant_turns_in_a_row_are_refused():
    said = [{"role": r, "content": "x"} for r in ("user", "assistant", "assistant")]
    shown = data.demonstration({"messages": said}, "demos line 4")
    with pytest.raises(RequestError, match="demos line 4: two assistant messages"):
        encode_all([shown], ByteTokenizer(), 64)


def test_every_epoch_is_all_examples():
    shuffled = order(5, 2, 10, seed=1, shuffle=True)
    assert shuffled.shape == (10, 2)
    epochs = shuffled.reshape(-1, 5)
    assert [sorted(e) for e in epochs.tolist()] == [list(range(5))] * 4
    assert len({tuple(e) for e in epochs.tolist()}) > 1
    assert np.array_equal(shuffled, order(5, 2, 10, seed=1, shuffle=True))
    assert not np.array_equal(shuffled, order(5, 2, 10, seed=2, shuffle=True))


def test_the_file_s_order_can_be_the_curriculum():
    assert order(3, 2, 3, seed=9, shuffle=False).tolist() == [[0, 1], [2, 0], [1, 2]]


def test_examples_are_padded_to_one_shape():
    (found,) = collate([([1, 2, 3], [False, True, True]), ([4], [False])], padded(2, 5))
    assert found.tokens.tolist() == [[1, 2, 3, 0, 0], [4, 0, 0, 0, 0]]
    assert found.mask.tolist() == [[0, 1, 1, 0, 0], [0] * 5]
    assert (found.segments > 0).sum(axis=1).tolist() == [3, 1]


SHAPE = Architecture(
    hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1
)
STAGE = SFT(
    name="copying",
    data="demos.jsonl",
    steps=150,
    batch_size=8,
    max_length=32,
    optimizer=Optimizer(learning_rate=0.01, warmup_steps=10),
)


def plan(root, *, stage=STAGE, initial=None, key="k", raw=None):
    """A warm-up stage in a store: its spec, the data, and the arguments of its process."""
    store = open_store(str(root))
    rows = [conversation(f"{i}*{i}", str(i * i)) for i in range(8)]
    raw = raw or "\n".join(map(json.dumps, rows)).encode()
    digest = hashlib.sha256(raw).hexdigest()
    store.put(keys.data(digest, "jsonl"), raw)
    run = config().model_copy(update={"warm_up": (stage,), "model": Model(architecture=SHAPE)})
    spec = WarmUpSpec(
        stage=stage.name, key=key, config=run.model_dump(mode="json"), seed=3, initial=initial,
        data=keys.data(digest, "jsonl"), data_sha256=digest, inputs=(),
    )  # fmt: skip
    store.put(f"specs/{key}.json", spec.to_bytes())
    return store, argparse.Namespace(root=str(root), spec=f"specs/{key}.json")


def manifest(store, key="k"):
    name = keys.stage_manifest("copying", key)
    return StageManifest.from_bytes(store.get(name).data, name)


def test_a_warm_up_learns_its_demonstrations_and_commits_them(tmp_path, capsys):
    store, args = plan(tmp_path)
    assert warm_up.main(args) == 0
    done = manifest(store)
    assert done.metrics["loss"] < 0.1
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [e["step"] for e in events if e["event"] == "warm_up"][-1] == STAGE.steps
    decoder, _, tokenizer = load_weights(store, done.weights)
    assert (decoder.vocab_size, decoder.hidden_size, tokenizer.vocab_size) == (263, 32, 263)
    assert done.weights.prefix.startswith("stages/copying-k/weights/")

    again = manifest(store)
    assert warm_up.main(args) == 0
    assert (manifest(store), len(store.list("stages/copying-k/weights/"))) == (
        again,
        len(store.list(done.weights.prefix)),
    )


def test_the_same_stage_makes_the_same_weights_and_a_next_one_starts_from_them(tmp_path):
    short = STAGE.model_copy(update={"steps": 2})
    found = []
    for folder in ("a", "b"):
        store, args = plan(tmp_path / folder, stage=short)
        warm_up.main(args)
        found.append(manifest(store).weights)
    assert found[0].sha256 == found[1].sha256
    still = short.model_copy(update={"optimizer": Optimizer(learning_rate=0.0)})
    _, args = plan(tmp_path / "b", stage=still, initial=found[1], key="next")
    warm_up.main(args)
    assert manifest(store, "next").weights.sha256 == found[1].sha256


def test_demonstrations_that_share_rows_make_the_same_weights(tmp_path):
    few = {"steps": 3, "optimizer": Optimizer(learning_rate=0.01, eps=1e-3)}
    found = []
    for folder, row in (("padded", None), ("packed", 48)):
        store, args = plan(tmp_path / folder, stage=STAGE.model_copy(update=few | {"row_tokens": row}))
        warm_up.main(args)
        found.append(flatten(load_weights(store, manifest(store).weights)[1]))
    for name, value in found[0].items():
        np.testing.assert_allclose(found[1][name], value, atol=2e-5)


def test_a_half_written_attempt_does_not_count(tmp_path, monkeypatch):
    store, args = plan(tmp_path, stage=STAGE.model_copy(update={"steps": 1}))
    with monkeypatch.context() as patch:
        patch.setattr(warm_up, "code_version", lambda: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            warm_up.main(args)
    assert store.head(keys.stage_manifest("copying", "k")) is None
    assert warm_up.main(args) == 0
    weights = manifest(store).weights
    assert len({k.split("/")[3] for k in store.list("stages/copying-k/weights/")}) == 2
    load_weights(store, weights)


def test_a_stop_commits_nothing(tmp_path, monkeypatch, capsys):
    store, args = plan(tmp_path)
    monkeypatch.setattr(warm_up, "turn", lambda: True)
    assert warm_up.main(args) == 0
    assert store.head(keys.stage_manifest("copying", "k")) is None
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["event"] == "stopped"


def test_another_file_than_planned_is_refused(tmp_path):
    store, args = plan(tmp_path)
    (key,) = store.list("data/")
    store.put(key, b"{}")
    with pytest.raises(RunStopped, match="is not the file that warm-up `copying` was planned with"):
        warm_up.main(args)


def test_a_length_beyond_the_model_is_refused(tmp_path):
    _, args = plan(tmp_path, stage=STAGE.model_copy(update={"max_length": 1024}))
    with pytest.raises(RequestError, match="max_length = 1024, but the model sees at most 512"):
        warm_up.main(args)


def test_a_loss_that_is_not_finite_stops_the_stage(tmp_path):
    wild = Optimizer(learning_rate=1e38, max_grad_norm=None)
    _, args = plan(tmp_path, stage=STAGE.model_copy(update={"optimizer": wild}))
    with pytest.raises(RunStopped, match="warm-up `copying` is not finite at step"):
        warm_up.main(args)
