"""A real vLLM on this machine's CPU: its log-probs are the learner's, through updates, deaths and padding."""

import asyncio
import dataclasses
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
from support.adapters import adapted_policy
from support.engines import CONTEXT, request, stream
from support.probes import learner_probe
from support.tiny import lively
from support.vllm import SERVED, SERVED_POLICIES, Letters, RealServer, engine_at, python_with_vllm

from models.config import DecoderConfig
from models.logprobs import token_logprobs
from models.pure import init_params
from rollout import vllm_server
from rollout.adapted import Adapted
from rollout.probe import EngineUnproved, Prover
from rollout.vllm_engine import VllmEngine
from schemas.config import VllmServers

pytestmark = pytest.mark.slow

QWEN3 = DecoderConfig.from_hf(SERVED.to_hf() | {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]})
GEMMA3 = DecoderConfig.from_hf(
    SERVED.to_hf()
    | {
        "model_type": "gemma3_text", "architectures": ["Gemma3ForCausalLM"], "hidden_act": "gelu_pytorch_tanh",
        "hidden_activation": "gelu_pytorch_tanh", "sliding_window": 16, "query_pre_attn_scalar": 32,
        "layer_types": ["sliding_attention", "full_attention"],
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": 300.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 20.0},
        },
    }
)  # fmt: skip
MODELS = {
    "llama, tied": SERVED,
    "llama, untied": dataclasses.replace(SERVED, tie_word_embeddings=False),
    "qwen3, tied": QWEN3,
    "gemma3, tied": GEMMA3,
}
PARENT = """
import asyncio, sys, time
from support.vllm import SERVED, SERVED_POLICIES, Letters
from rollout.vllm_engine import VllmEngine
from schemas.config import VllmServers

async def main():
    engine = VllmEngine(SERVED, SERVED_POLICIES[0], Letters(), VllmServers(python=sys.argv[1], folder=sys.argv[2]),
                        version=0, max_length=64)
    await engine.start()
    print("started", flush=True)
    time.sleep(1000)

asyncio.run(main())
"""


@pytest.fixture(scope="module")
def url():
    server = RealServer(SERVED, SERVED_POLICIES[0])
    yield server.url
    server.stop()


@pytest.fixture
async def engine(url):
    made = engine_at(url, config=SERVED, policies=SERVED_POLICIES)
    yield made
    await made.close()


def own(config=SERVED, policies=SERVED_POLICIES, slots=4, **settings):
    settings = VllmServers(python=str(python_with_vllm()), **settings)
    letters = Letters(config.vocab_size)
    return VllmEngine(config, policies[0], letters, settings, version=0, slots=slots, max_length=CONTEXT)


def gap(config, params, prompt, done):
    """Largest difference between the log-probs of a turn and the learner's."""
    tokens = np.asarray([*prompt, *done.token_ids], np.int32)[None]
    places = np.arange(tokens.shape[1])[None]
    logprobs, _ = token_logprobs(config, params, tokens, places, places >= 0)
    return float(np.abs(np.subtract(done.logprobs, np.asarray(logprobs)[0, len(prompt) :])).max())


@pytest.mark.parametrize("model", MODELS)
async def test_log_probs_are_the_learners_at_the_start_and_after_updates(model, record_property):
    config = MODELS[model]
    policies = [lively(init_params(config, 0), s) for s in (1, 2)]
    made = own(config, policies)
    prover = Prover(made, 1e-4)
    await prover.start(policies[0], 0, learner_probe(config, policies[0], 64))
    await made.update_weights(policies[1], 1)
    await prover.update(1, learner_probe(config, policies[1], 64))
    assert prover.counters() == {"probe_passed": 2, "probe_blind": 0}
    asked = [request(stream(3 + 9 * i, i), session=str(i), seed=i, max_tokens=40, temperature=i / 2) for i in range(4)]
    done = await asyncio.gather(*[made.generate(r) for r in asked])
    gaps = [gap(config, policies[1], r.token_ids, d) for r, d in zip(asked, done, strict=True)]
    await made.close()
    record_property("gap", max(gaps))
    print(f"{model}: largest difference from the learner {max(gaps):.1e}")
    assert max(gaps) < 1e-4


@pytest.mark.parametrize("cured", [True, False])
async def test_the_probe_catches_the_old_output_head(tmp_path, monkeypatch, cured):
    """Without packing weights again, vLLM goes on with the output head that it was started with."""
    line = "            self.headrace_pack_again()\n"
    text = (vllm_server.SITE / "headrace_vllm.py").read_text()
    assert text.count(line) == 1
    (tmp_path / "headrace_vllm.py").write_text(text if cured else text.replace(line, "            pass\n"))
    monkeypatch.setattr(vllm_server, "SITE", tmp_path)
    made = own()
    prover, probe = Prover(made, 1e-3), learner_probe(SERVED, SERVED_POLICIES[0], 64)
    try:
        if cured:
            await prover.start(SERVED_POLICIES[0], 0, probe)
            assert prover.counters()["probe_passed"] == 1
        else:
            with pytest.raises(EngineUnproved, match="does not hold policy 0 with its tokens renumbered") as caught:
                await prover.start(SERVED_POLICIES[0], 0, probe)
            print(caught.value)
            await made.update_weights(SERVED_POLICIES[1], 1)
            with pytest.raises(EngineUnproved, match="does not hold policy 1"):
                await prover.update(1, learner_probe(SERVED, SERVED_POLICIES[1], 64))
    finally:
        await made.close()


async def test_weights_change_in_the_middle_of_a_turn(engine):
    asked = [request(session=str(i), seed=i, max_tokens=110, stop_ids=()) for i in range(4)]
    await engine.generate(request())
    running = [asyncio.ensure_future(engine.generate(r)) for r in asked]
    await asyncio.sleep(0.3)
    await engine.update_weights(SERVED_POLICIES[1], 5)
    for wanted, done in zip(asked, await asyncio.gather(*running), strict=True):
        before = done.versions.index(5)
        assert 0 < before < 110 and set(done.versions) == {0, 5}
        old = dataclasses.replace(done, token_ids=done.token_ids[:before], logprobs=done.logprobs[:before])
        assert gap(SERVED, SERVED_POLICIES[0], wanted.token_ids, old) < 1e-4
        prompt = (*wanted.token_ids, *done.token_ids[:before])
        new = dataclasses.replace(done, token_ids=done.token_ids[before:], logprobs=done.logprobs[before:])
        assert gap(SERVED, SERVED_POLICIES[1], prompt, new) < 1e-4


@pytest.mark.parametrize("model", MODELS)
async def test_adapters_reach_a_server_that_keeps_its_weights(model):
    """From the base and one policy's adapters to another's, at the end in the middle of turns."""
    config = MODELS[model]
    base = lively(init_params(config, 0), 1)
    (first, before), (second, middle), (third, after) = (adapted_policy(config, base, seed) for seed in (3, 4, 5))
    made = own(config, [Adapted(first, base)])
    prover = Prover(made, 1e-3)
    try:
        await prover.start(Adapted(first, base), 0, learner_probe(config, before, 64))
        await made.update_weights(Adapted(second, None), 1)
        await prover.update(1, learner_probe(config, middle, 64))
        asked = [request(session=str(i), seed=i, max_tokens=110) for i in range(4)]
        running = [asyncio.ensure_future(made.generate(r)) for r in asked]
        await asyncio.sleep(0.3)
        await made.update_weights(Adapted(third, None), 5)
        gaps = []
        for wanted, done in zip(asked, await asyncio.gather(*running), strict=True):
            end = done.versions.index(5)
            old = dataclasses.replace(done, token_ids=done.token_ids[:end], logprobs=done.logprobs[:end])
            new = dataclasses.replace(done, token_ids=done.token_ids[end:], logprobs=done.logprobs[end:])
            gaps.append(gap(config, middle, wanted.token_ids, old) if end else 0.0)
            gaps.append(gap(config, after, (*wanted.token_ids, *old.token_ids), new))
        await prover.update(5, learner_probe(config, after, 64))
    finally:
        await made.close()
    print(f"{model}, adapters: largest difference from the learner {max(gaps):.1e}")
    assert max(gaps) < 2e-4
    assert prover.counters() == {"probe_passed": 3, "probe_blind": 0}


async def test_more_prompts_than_one_pass_of_the_server_reads():
    """On a CPU, vLLM dies where it cuts a prompt in two whose request has a seed."""
    made = own(slots=96)
    asked = [request(stream(60, i), session=str(i), seed=i, max_tokens=4) for i in range(96)]
    try:
        done = await asyncio.gather(*[made.generate(r) for r in asked])
        await made.update_weights(SERVED_POLICIES[1], 1)
    finally:
        await made.close()
    assert max(gap(SERVED, SERVED_POLICIES[0], r.token_ids, d) for r, d in zip(asked, done, strict=True)) < 1e-4
    assert made.counters()["engine_restarts"] == 0


async def test_padding_is_never_sampled_and_log_probs_count_it_in(url):
    made = engine_at(url, config=SERVED, policies=SERVED_POLICIES, tokenizer=Letters(20))
    asked = [request(stream(5, i), session=str(i), seed=i, max_tokens=60, temperature=1.5) for i in range(4)]
    done = await asyncio.gather(*[made.generate(r) for r in asked])
    assert max(t for d in done for t in d.token_ids) < 20
    for wanted, found in zip(asked, done, strict=True):
        assert gap(SERVED, SERVED_POLICIES[0], wanted.token_ids, found) < 1e-4
    await made.close()


async def test_a_killed_server_is_started_again_and_the_turn_is_the_same(tmp_path):
    made = own(folder=str(tmp_path))
    await made.update_weights(SERVED_POLICIES[1], 3)
    prover = Prover(made, 1e-4)
    await prover.update(3, learner_probe(SERVED, SERVED_POLICIES[1], 64))
    asked = [request(session=str(i), seed=i, max_tokens=110) for i in range(4)]
    wanted = await asyncio.gather(*[made.generate(r) for r in asked])
    running = [asyncio.ensure_future(made.generate(r)) for r in asked]
    await asyncio.sleep(0.2)
    for process in server_processes(tmp_path):
        process.kill()
    done = await asyncio.gather(*running)
    assert [d.token_ids for d in done] == [w.token_ids for w in wanted]
    assert {v for d in done for v in d.versions} == {3}
    assert made.counters()["engine_restarts"] == 1
    await made.close()
    assert not server_processes(tmp_path)


@pytest.mark.parametrize("adapted", [False, True], ids=["whole", "adapters"])
async def test_a_server_by_url_that_was_started_again_unnoticed_gets_the_newest_weights(monkeypatch, adapted):
    base = SERVED_POLICIES[0]
    switches = ("--enable-lora", "--max-loras", "1", "--max-cpu-loras", "1", "--max-lora-rank", "8") if adapted else ()
    (first, _), (second, summed) = (adapted_policy(SERVED, base, seed) for seed in (3, 4))
    before, after, params = (
        (Adapted(first, base), Adapted(second, None), summed) if adapted else (*SERVED_POLICIES, SERVED_POLICIES[1])
    )
    server = RealServer(SERVED, base, *switches)
    port = int(server.url.rpartition(":")[2])
    made = engine_at(server.url, config=SERVED, policies=[before])
    try:
        await made.update_weights(after, 3)
        prover = Prover(made, 1e-4)
        await prover.update(3, learner_probe(SERVED, params, 64))
        asked = [request(session=str(i), seed=i, max_tokens=60) for i in range(4)]
        wanted = await asyncio.gather(*[made.generate(r) for r in asked])
        server.stop()
        monkeypatch.setattr(vllm_server, "_free_port", lambda: port)
        server = RealServer(SERVED, base, *switches)
        done = await asyncio.gather(*[made.generate(r) for r in asked])
        await prover.update(3, learner_probe(SERVED, params, 64))
    finally:
        await made.close()
        server.stop()
    assert [d.token_ids for d in done] == [w.token_ids for w in wanted]
    assert {v for d in done for v in d.versions} == {3}
    assert max(gap(SERVED, params, r.token_ids, d) for r, d in zip(asked, done, strict=True)) < 2e-4
    assert made.counters()["engine_restarts"] == 1


def server_processes(folder: Path):
    """vLLM's processes that serve weights below `folder`, and their children."""
    found = [
        p for p in psutil.process_iter() if str(folder) in " ".join(command(p)) and "vllm_guard" not in str(command(p))
    ]
    return [p for parent in found for p in (*parent.children(recursive=True), parent)]


def command(process):
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def test_the_server_ends_with_a_killed_worker(tmp_path):
    here = Path(__file__).parents[2]
    environment = os.environ | {"PYTHONPATH": f"{here}:{here / 'tests'}"}
    arguments = [str(python_with_vllm()), str(tmp_path)]
    worker = subprocess.Popen([sys.executable, "-c", PARENT, *arguments], stdout=subprocess.PIPE, env=environment)
    assert worker.stdout.readline() == b"started\n"
    servers = server_processes(tmp_path)
    assert len(servers) > 1, "the server has children"
    worker.send_signal(signal.SIGKILL)
    worker.wait()
    end = time.monotonic() + 60
    while any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in servers) or list(tmp_path.iterdir()):
        assert time.monotonic() < end
        time.sleep(0.1)
