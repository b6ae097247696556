"""Preference warm-ups: what is read of a pair, the step, and the stage's process from weights to weights."""

import argparse
import hashlib
import json

import jax
import numpy as np
import pytest
from support.protocol import config

from models.chat import chat_format
from models.config import DecoderConfig
from models.pure import flatten, init_params
from models.stored import load_weights, save_weights
from models.tokenizer import ByteTokenizer
from schemas import keys
from schemas.errors import RequestError
from schemas.manifest import StageManifest, WarmUpSpec
from schemas.messages import Message
from schemas.optimizer import Optimizer
from schemas.warm_ups import DPO, ORPO
from storage.open import open_store
from storage.rows import read_preferences
from trainer import warm_up
from trainer.lessons import preferring, score_reference
from trainer.optimizer import make_optimizer
from trainer.packing import padded
from trainer.preference_data import collate_pairs
from trainer.preference_step import make_preference_step, side_logprobs
from trainer.sft_data import collate
from trainer.step import init_state
from trainer.streams import encode_pairs

TOKENIZER = ByteTokenizer()
CALL = {"function": {"name": "calculator", "arguments": {"expression": "4*7"}}}
TOOL = {"name": "calculator", "parameters": {"type": "object", "properties": {"expression": {"type": "string"}}}}
SHAPE = DecoderConfig(
    vocab_size=263, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2,
    num_key_value_heads=1, head_dim=8, max_position_embeddings=64,
)  # fmt: skip


def pair(question="4*7", good="28", bad="?", **changes):
    worked = [
        {"role": "assistant", "tool_calls": [CALL]},
        {"role": "tool", "content": good},
        {"role": "assistant", "content": good},
    ]
    prompt = [{"role": "user", "content": f"{question}=?"}]
    row = {"prompt": prompt, "chosen": worked, "rejected": [{"role": "assistant", "content": bad}], "tools": [TOOL]}
    return row | changes


def read(*rows):
    return read_preferences("\n".join(map(json.dumps, rows)).encode(), "jsonl", "pairs.jsonl")


def test_both_sides_are_streams_of_episodes_with_the_same_prompt():
    (found,) = read(pair())
    ((chosen, chosen_mask), (rejected, rejected_mask)) = encode_pairs([found], TOKENIZER, 64)[0]
    chat, end = chat_format(TOKENIZER, found.tools), TOKENIZER.special("<|end|>")
    prompt = chat.prompt([Message("user", "4*7=?")], found.tools)
    assert chosen[: len(prompt)] == rejected[: len(prompt)] == prompt
    trained = [t for t, m in zip(chosen, chosen_mask, strict=True) if m]
    assert trained == [TOKENIZER.special("<|call|>"), *b"4*7", end, *b"28", end]
    assert [t for t, m in zip(rejected, rejected_mask, strict=True) if m] == [*b"?", end]


def test_parquet_holds_pairs_too(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    file = tmp_path / "pairs.parquet"
    pq.write_table(pa.Table.from_pylist([{k: json.dumps(v) for k, v in pair().items()}]), file)
    assert read_preferences(file.read_bytes(), "parquet", "pairs.parquet") == read(pair())


SAID = [{"role": "assistant", "content": "28"}]


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        ({"prompt": SAID, "chosen": SAID}, "pairs.jsonl line 1: a pair needs `rejected`"),
        (pair(prompt=[]), "`prompt` must be a non-empty list"),
        (pair(prompt=SAID), "`prompt` ends with an assistant message"),
        (pair(chosen=[{"role": "tool", "content": "28"}]), "`chosen` must start with an assistant message"),
        (pair(chosen=SAID, rejected=SAID), "line 1: `chosen` and `rejected` are equal"),
    ],
)
def test_a_pair_that_is_none_is_refused_by_its_line(row, sentence):
    with pytest.raises(RequestError, match=sentence):
        read(row)


def test_a_pair_that_the_model_can_not_tell_apart_or_hold_is_refused():
    trailing = read(pair(chosen=SAID, rejected=[*SAID, {"role": "tool", "content": "late"}]))
    with pytest.raises(RequestError, match="line 1: `chosen` and `rejected` are the same to the model"):
        encode_pairs(trailing, TOKENIZER, 64)
    with pytest.raises(RequestError, match=r"line 1: prompt and `rejected` have 69 tokens, more than max_length = 64"):
        encode_pairs(read(pair(bad="?" * 60)), TOKENIZER, 64)


def dpo(**changes):
    settings = {"name": "liked", "kind": "dpo", "data": "pairs.jsonl", "steps": 30, "batch_size": 4, "max_length": 32}
    return DPO(**settings | {"optimizer": Optimizer(learning_rate=0.01)} | changes)


def orpo(**changes):
    return ORPO(**dpo().model_dump(exclude={"kind", "beta", "label_smoothing"}) | {"kind": "orpo"} | changes)


def some_pairs(count=6):
    rows = [pair(f"{i}*{i}", str(i * i)) for i in range(2, 2 + count)]
    return encode_pairs(read(*rows), TOKENIZER, 32)


def test_log_probs_of_a_side_are_those_of_its_assistant_tokens_alone():
    params, found = init_params(SHAPE, 1), some_pairs(3)
    batch = collate_pairs(found, 32)
    sums = side_logprobs(SHAPE, params, batch)
    (rows,) = collate([side for one in found for side in one], padded(6, 32))
    logits = warm_up_logits(params, rows)
    for row, total in zip(range(6), np.asarray(sums).ravel(), strict=True):
        expected = sum(logits[row, t - 1, rows.tokens[row, t]] for t in np.flatnonzero(rows.mask[row]))
        assert total == pytest.approx(expected, abs=1e-3)


def warm_up_logits(params, rows):
    from models.pure import apply
    from trainer.step import positions

    return np.asarray(jax.nn.log_softmax(apply(SHAPE, params, rows.tokens, positions(rows.tokens), rows.valid)))


def test_the_reference_is_scored_in_parts_of_one_size_and_only_where_it_is_needed():
    params, found = init_params(SHAPE, 1), some_pairs(6)
    plan = np.array([[0, 1], [4, 0], [2, 2]])
    scores = score_reference(SHAPE, params, found, dpo(batch_size=3), plan, 60.0)
    expected = np.array(side_logprobs(SHAPE, params, collate_pairs(found, 32)))
    expected[[3, 5]] = 0
    np.testing.assert_allclose(scores, expected, rtol=1e-5)
    assert not score_reference(SHAPE, None, found, orpo(), plan, 60.0).any()


def test_dpo_starts_at_log_two_and_the_first_step_moves_the_sides_apart():
    stage, params, found = dpo(), init_params(SHAPE, 1), some_pairs(4)
    optimizer = make_optimizer(stage.optimizer, 30)
    step = make_preference_step(SHAPE, stage, optimizer)
    batch = collate_pairs(found, 32, np.asarray(side_logprobs(SHAPE, params, collate_pairs(found, 32))))
    state, first = step(init_state(params, optimizer), [batch])
    assert float(first["loss"]) == pytest.approx(np.log(2), abs=1e-5)
    assert abs(float(first["margin"])) < 1e-4
    _, second = step(state, [batch])
    assert float(second["margin"]) > 0 and float(second["accuracy"]) == 1.0


@pytest.mark.parametrize("stage", [dpo(batch_size=6), orpo(batch_size=6)], ids=["dpo", "orpo"])
def test_micro_batches_change_nothing(stage):
    params, found = init_params(SHAPE, 1), some_pairs(6)
    optimizer, chosen = make_optimizer(stage.optimizer, 30), np.array([3, 1, 0, 5, 4, 2])
    reference = np.linspace(-9, -3, 12).reshape(6, 2)
    results = []
    for size in (None, 2):
        lesson = preferring(SHAPE, optimizer, found, stage.model_copy(update={"micro_batch": size}), reference)
        assert len(lesson.parts(chosen)) == (3 if size else 1)
        results.append(lesson.step(init_state(jax.tree.map(jax.numpy.array, params), optimizer), lesson.parts(chosen)))
    (whole, figures), (parted, again) = results
    assert {k: float(v) for k, v in figures.items()} == pytest.approx({k: float(v) for k, v in again.items()}, rel=1e-4)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), whole.params, parted.params)


def plan(root, stage, initial=True, lora=None):
    """A preference stage in a store, and the arguments of its process."""
    store = open_store(str(root))
    weights = save_weights(store, "weights/a", SHAPE, init_params(SHAPE, 1), TOKENIZER, "float32", "stages/a")
    raw = "\n".join(json.dumps(pair(f"{i}*{i}", str(i * i))) for i in range(2, 10)).encode()
    digest = hashlib.sha256(raw).hexdigest()
    store.put(keys.data(digest, "jsonl"), raw)
    run = config().model_dump(mode="json") | {"warm_up": [stage.model_dump(mode="json")], "lora": lora}
    run["model"] = {"path": "weights", "architecture": {"hidden_size": 16, "intermediate_size": 24,
                    "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1}}  # fmt: skip
    spec = WarmUpSpec(
        stage=stage.name, key="k", config=run, seed=3, initial=weights if initial else None,
        data=keys.data(digest, "jsonl"), data_sha256=digest, inputs=(),
    )  # fmt: skip
    store.put("spec.json", spec.to_bytes())
    return store, argparse.Namespace(root=str(root), spec="spec.json")


@pytest.mark.parametrize("stage", [dpo(), orpo(odds_weight=1.0)], ids=["dpo", "orpo"])
def test_a_preference_warm_up_learns_to_tell_the_sides_apart_and_commits(tmp_path, capsys, stage):
    store, args = plan(tmp_path, stage)
    assert warm_up.main(args) == 0
    name = keys.stage_manifest("liked", "k")
    done = StageManifest.from_bytes(store.get(name).data, name)
    assert done.metrics["accuracy"] == 1.0 and done.metrics["margin"] > 0.1
    assert done.metrics["chosen_logprob"] > done.metrics["rejected_logprob"]
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    told = [e for e in events if e["event"] == "warm_up"]
    assert told[-1]["step"] == 30 and told[-1]["margin"] == done.metrics["margin"]
    assert load_weights(store, done.weights)[0] == SHAPE


@pytest.mark.parametrize("stage", [dpo(steps=3), orpo(steps=3)], ids=["dpo", "orpo"])
def test_a_preference_warm_up_moves_adapters_alone(tmp_path, stage):
    store, args = plan(tmp_path, stage, lora={"rank": 2, "targets": ["q_proj"]})
    assert warm_up.main(args) == 0
    name = keys.stage_manifest("liked", "k")
    done = StageManifest.from_bytes(store.get(name).data, name)
    before, after = flatten(init_params(SHAPE, 1)), flatten(load_weights(store, done.weights)[1])
    moved = [name for name in after if not np.array_equal(before[name], after[name])]
    assert moved == ["model.layers.0.self_attn.q_proj.weight"]
    described = json.loads(store.get(f"{done.weights.prefix}/adapter/adapter_config.json").data)
    assert (described["r"], described["base_model_name_or_path"]) == (2, "stages/a")


def test_dpo_without_weights_to_start_from_is_refused_and_orpo_is_not(tmp_path):
    _, args = plan(tmp_path / "a", dpo(steps=1), initial=False)
    with pytest.raises(RequestError, match="warm-up `liked`: reference policy missing"):
        warm_up.main(args)
    _, args = plan(tmp_path / "b", orpo(steps=1), initial=False)
    assert warm_up.main(args) == 0


def test_a_stop_while_the_reference_is_scored_commits_nothing(tmp_path, monkeypatch):
    store, args = plan(tmp_path, dpo())
    monkeypatch.setattr("trainer.lessons.turn", lambda: True)
    assert warm_up.main(args) == 0
    assert store.head(keys.stage_manifest("liked", "k")) is None
