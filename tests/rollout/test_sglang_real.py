"""A real SGLang on this machine's CPU: its log-probs are the learner's, through updates, deaths and padding."""

import asyncio
import dataclasses
from pathlib import Path

import numpy as np
import psutil
import pytest
from support.engines import CONTEXT, kept, request, stream
from support.probes import learner_probe
from support.tiny import lively
from support.vllm import (
    SERVED,
    SERVED_POLICIES,
    WIDE,
    WIDE_POLICIES,
    Letters,
    RealServer,
    engine_at,
    python_with_sglang,
)

from models.config import DecoderConfig
from models.logprobs import token_logprobs
from models.pure import apply, init_params
from rollout.probe import EngineUnproved, Prover
from rollout.vllm_engine import VllmEngine
from schemas.config import SglangServers
from schemas.errors import RunStopped

pytestmark = pytest.mark.slow

QWEN3 = DecoderConfig.from_hf(WIDE.to_hf() | {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]})
QWEN2 = DecoderConfig.from_hf(WIDE.to_hf() | {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]})
LLAMA3 = {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
SCALED = WIDE.to_hf() | {"rope_scaling": LLAMA3 | {"original_max_position_embeddings": 64}}
MODELS = {
    "llama, tied": WIDE,
    "llama, untied": dataclasses.replace(WIDE, tie_word_embeddings=False),
    "llama, scaled": DecoderConfig.from_hf(SCALED),
    "qwen2, tied": QWEN2,
    "qwen3, tied": QWEN3,
}
NEAR = 5e-4
"""Largest difference from the learner: SGLang's attention on a CPU rounds more than vLLM's."""


@pytest.fixture(scope="module")
def url():
    server = RealServer(WIDE, WIDE_POLICIES[0], kind=SglangServers)
    yield server.url
    server.stop()


def engine(url, **more):
    return engine_at(url, config=WIDE, policies=WIDE_POLICIES, kind=SglangServers, **more)


def own(config=WIDE, policies=WIDE_POLICIES, **settings):
    settings = SglangServers(python=str(python_with_sglang()), **settings)
    return VllmEngine(config, policies[0], Letters(config.vocab_size), settings, version=0, slots=4, max_length=CONTEXT)


def gap(config, params, prompt, done):
    """Largest difference between the log-probs of a turn and the learner's."""
    tokens = np.asarray([*prompt, *done.token_ids], np.int32)[None]
    places = np.arange(tokens.shape[1])[None]
    logprobs, _ = token_logprobs(config, params, tokens, places, places >= 0)
    return float(np.abs(np.subtract(done.logprobs, np.asarray(logprobs)[0, len(prompt) :])).max())


@pytest.mark.parametrize("model", MODELS)
async def test_log_probs_are_the_learners_at_the_start_and_after_updates(model):
    config = MODELS[model]
    policies = [lively(init_params(config, 0), s) for s in (1, 2)]
    made = own(config, policies)
    try:
        prover = Prover(made, 1e-3)
        await prover.start(policies[0], 0, learner_probe(config, policies[0], 64))
        await made.update_weights(policies[1], 1)
        await prover.update(1, learner_probe(config, policies[1], 64))
        assert prover.counters() == {"probe_passed": 2, "probe_blind": 0}
        asked = [request(stream(3 + 9 * i, i), session=str(i), seed=i, temperature=i / 2) for i in range(4)]
        done = await asyncio.gather(*[made.generate(r) for r in asked])
    finally:
        await made.close()
    gaps = [gap(config, policies[1], r.token_ids, d) for r, d in zip(asked, done, strict=True)]
    print(f"{model}: largest difference from the learner {max(gaps):.1e}")
    assert max(gaps) < NEAR


async def test_weights_change_in_the_middle_of_turns(url):
    """Also where prompts were just read, some are waiting, and a score is asked for meanwhile."""
    made = engine(url, slots=6)
    asked = [request(stream(5 + i, i), session=str(i), seed=i, max_tokens=100) for i in range(6)]
    alone = [await made.generate(r) for r in asked]
    (before,) = (await made.score(stream(60))).values()
    running = []
    for r in asked:
        running.append(asyncio.ensure_future(made.generate(r)))
        await asyncio.sleep(0.05)
    (meanwhile,) = (await made.score(stream(60))).values()
    assert meanwhile == pytest.approx(before, abs=NEAR)
    await made.update_weights(WIDE_POLICIES[1], 5)
    done = await asyncio.gather(*running)
    await made.close()
    mixed = 0
    for wanted, undisturbed, found in zip(asked, alone, done, strict=True):
        end = found.versions.index(5) if 5 in found.versions else len(found.versions)
        mixed += 0 < end < 100
        assert found.token_ids[:end] == undisturbed.token_ids[:end]
        assert found.versions == (0,) * end + (5,) * (100 - end)
        old = dataclasses.replace(found, token_ids=found.token_ids[:end], logprobs=found.logprobs[:end])
        new = dataclasses.replace(found, token_ids=found.token_ids[end:], logprobs=found.logprobs[end:])
        assert not end or gap(WIDE, WIDE_POLICIES[0], wanted.token_ids, old) < NEAR
        assert end == 100 or gap(WIDE, WIDE_POLICIES[1], (*wanted.token_ids, *old.token_ids), new) < NEAR
    assert mixed >= 3


async def test_padding_is_never_sampled_and_log_probs_count_it_in(url):
    made = engine(url, tokenizer=Letters(20))
    asked = [request(stream(5, i), session=str(i), seed=i, max_tokens=60, temperature=1.5) for i in range(4)]
    done = await asyncio.gather(*[made.generate(r) for r in asked])
    await made.close()
    assert max(t for d in done for t in d.token_ids) < 20
    for wanted, found in zip(asked, done, strict=True):
        assert gap(WIDE, WIDE_POLICIES[0], wanted.token_ids, found) < NEAR


async def test_samples_follow_the_policy_and_its_truncation(url):
    """Over many seeds, the first token is what the learner's distribution says; 0.1 is over 3 deviations."""
    made, prompt, count = engine(url, slots=8), stream(6), 300
    places = np.arange(len(prompt))[None]
    logits = np.asarray(apply(WIDE, WIDE_POLICIES[0], np.asarray(prompt)[None], places, places >= 0))[0, -1]
    for temperature, top_p, top_k in ((1.0, 1.0, 0), (2.0, 0.8, 0), (1.5, 1.0, 3)):
        more = {"max_tokens": 1, "temperature": temperature, "top_p": top_p, "top_k": top_k}
        asked = [request(prompt, session=str(i), seed=i * 14_313_749, **more) for i in range(count)]
        done = await asyncio.gather(*[made.generate(r) for r in asked])
        mass = np.where(kept(logits / temperature, top_p, top_k), np.exp((logits - logits.max()) / temperature), 0)
        found = np.bincount([d.token_ids[0] for d in done], minlength=WIDE.vocab_size) / count
        assert set(np.flatnonzero(found)) <= set(np.flatnonzero(mass))
        assert np.abs(found - mass / mass.sum()).max() < 0.1
    await made.close()


async def test_the_probe_catches_a_server_that_keeps_its_weights(url, monkeypatch):
    made = engine(url)
    await made.start()
    (server,) = made._fleet._servers
    load = server.client.load
    monkeypatch.setattr(server.client, "load", lambda folder, version, adapter=None: load(None, version, adapter))
    with pytest.raises(EngineUnproved, match=r"SGLang at .* does not hold policy 0 with its tokens renumbered"):
        await Prover(made, 1e-3).start(WIDE_POLICIES[0], 0, learner_probe(WIDE, WIDE_POLICIES[0], 64))
    await made.close()


async def test_a_killed_server_is_started_again_and_the_turn_is_the_same(tmp_path):
    made = own(folder=str(tmp_path))
    await made.update_weights(WIDE_POLICIES[1], 3)
    await Prover(made, 1e-3).update(3, learner_probe(WIDE, WIDE_POLICIES[1], 64))
    asked = [request(session=str(i), seed=i, max_tokens=110) for i in range(4)]
    wanted = await asyncio.gather(*[made.generate(r) for r in asked])
    running = [asyncio.ensure_future(made.generate(r)) for r in asked]
    await asyncio.sleep(0.2)
    for process in servers(tmp_path):
        process.kill()
    done = await asyncio.gather(*running)
    assert [d.token_ids for d in done] == [w.token_ids for w in wanted]
    assert {v for d in done for v in d.versions} == {3}
    assert made.counters()["engine_restarts"] == 1
    await made.close()
    assert not servers(tmp_path)


async def test_a_model_that_its_attention_cannot_serve_is_named():
    made = own(SERVED, SERVED_POLICIES)
    with pytest.raises(RunStopped, match="SGLang can't serve this model: ValueError: its heads have 32 dimensions"):
        await made.start()
    await made.close()


def servers(folder: Path):
    """The processes that serve weights below `folder`."""
    return [p for p in psutil.process_iter() if "headrace_sglang" in command(p) and str(folder) in command(p)]


def command(process):
    try:
        line = " ".join(process.cmdline())
    except psutil.Error:
        return ""
    return "" if "vllm_guard" in line else line
