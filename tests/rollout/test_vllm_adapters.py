"""Policies that reach vLLM as adapters on weights that stay: fake servers, and what is read from the store."""

import asyncio

import numpy as np
import pytest
from support.adapters import BASE, adapted_policy
from support.engines import POLICIES, learner_logprobs, request
from support.fake_vllm import FakeVllm
from support.probes import learner_probe
from support.tiny import TINY
from support.vllm import Letters, engine_at

from rollout import vllm_fleet
from rollout.adapted import Adapted
from rollout.adapter_policies import AdapterPolicies
from rollout.probe import EngineUnproved, Prover
from schemas import keys
from schemas.errors import RequestError, RunStopped
from schemas.manifest import WeightsRef
from storage.memory import MemoryStore
from storage.objects import ObjectMissing

FIRST, SECOND = (adapted_policy(TINY, POLICIES[0], seed) for seed in (3, 4))
REF = WeightsRef(prefix="policies/1", sha256="c" * 64, origin="test")


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(vllm_fleet, "BACK_SECONDS", 0.01)


@pytest.fixture
async def fake():
    made = FakeVllm(TINY, POLICIES[1])
    made.rank = 8
    await made.start()
    yield made
    await made.stop()


@pytest.fixture
async def engine(fake):
    made = engine_at(fake.url, policies=[Adapted(FIRST[0], POLICIES[0])])
    yield made
    await made.close()


async def back(fake):
    """Start a server again once it is gone."""
    while fake._runner is not None:
        await asyncio.sleep(0.005)
    await fake._stopping
    fake.dies_at = 0
    await fake.start()


async def proved(engine):
    prover = Prover(engine, 1e-3)
    await engine.start()
    await prover.start(Adapted(FIRST[0], POLICIES[0]), 0, learner_probe(TINY, FIRST[1]))
    return prover


async def test_an_update_is_the_adapters_alone_and_the_probe_proves_the_sum(fake, engine):
    prover = await proved(engine)
    loads = fake.loads
    await engine.update_weights(Adapted(SECOND[0], None), 1)
    await prover.update(1, learner_probe(TINY, SECOND[1]))
    done = await engine.generate(request())
    wanted = learner_logprobs(SECOND[1], (*request().token_ids, *done.token_ids), len(done.token_ids))
    assert np.abs(np.subtract(done.logprobs, wanted)).max() < 1e-4
    assert (set(done.versions), fake.loads, engine.counters()["engine_restarts"]) == ({1}, loads, 0)
    assert prover.counters() == {"probe_passed": 2, "probe_blind": 0}
    assert len({body.get("model") for body in fake.bodies}) == 1 and fake.bodies[0]["model"].startswith("headrace-")


async def test_a_running_turn_goes_over_to_new_adapters(fake, engine):
    fake.answers_after = 2
    running = asyncio.ensure_future(engine.generate(request(max_tokens=100)))
    while not fake.running:
        await asyncio.sleep(0.005)
    await engine.update_weights(Adapted(SECOND[0], None), 7)
    done = await running
    assert set(done.versions) <= {0, 7} and done.versions[-1] == 7


async def test_a_server_that_ignores_adapters_is_caught(fake, engine):
    prover = await proved(engine)
    fake.ignores_adapters = True
    await engine.update_weights(Adapted(SECOND[0], None), 1)
    with pytest.raises(EngineUnproved, match=f"vLLM at {fake.url} does not hold policy 1: it gives the probe's tokens"):
        await prover.update(1, learner_probe(TINY, SECOND[1]))


async def test_a_server_that_comes_back_gets_the_weights_and_the_newest_adapters(fake, engine):
    prover = await proved(engine)
    await engine.update_weights(Adapted(SECOND[0], None), 1)
    await prover.update(1, learner_probe(TINY, SECOND[1]))
    fake.dies_at, loads = fake.asked + 1, fake.loads
    bringing_back = asyncio.ensure_future(back(fake))
    done = await engine.generate(request())
    await bringing_back
    assert (set(done.versions), fake.loads) == ({1}, loads + 1)
    await prover.update(1, learner_probe(TINY, SECOND[1]))


@pytest.mark.parametrize("first", ["the probe", "an update"])
async def test_a_server_that_was_started_again_unnoticed_gets_weights_and_adapters(fake, engine, first):
    prover = await proved(engine)
    await engine.update_weights(Adapted(SECOND[0], None), 1)
    await prover.update(1, learner_probe(TINY, SECOND[1]))
    await fake.stop()
    await fake.start()
    if first == "an update":
        await engine.update_weights(Adapted(SECOND[0], None), 2)
    await prover.update(2, learner_probe(TINY, SECOND[1]))
    assert set((await engine.generate(request())).versions) == {engine.version}
    assert engine.counters()["engine_restarts"] == 1


@pytest.mark.parametrize(
    ("most", "message"),
    [
        (0, "the server at {url} takes no adapters: start it with --enable-lora"),
        (3, "the server at {url} takes adapters up to rank 3, less than lora.rank = 4: start it with a higher"),
    ],
)
async def test_servers_that_cannot_take_the_adapters_are_refused_before_work(fake, engine, most, message):
    fake.rank = most
    with pytest.raises(RequestError, match=message.format(url=fake.url)):
        await engine.start()
    assert fake.loads == 0


async def test_adapters_that_a_server_refuses_stop_the_worker(fake, engine):
    await engine.start()
    fake.rank = 3
    with pytest.raises(RunStopped, match=r"can't take policy 1: LoRA rank 4 is greater than max_lora_rank 3"):
        await engine.update_weights(Adapted(SECOND[0], None), 1)
    assert fake._going.is_set()


# -- what a worker reads ---------------------------------------------------------------------------------------


def stored(files):
    store = MemoryStore("adapters")
    for name, data in files.items():
        store.put(keys.adapter(REF.prefix, name), data)
    return store


def test_the_weights_below_adapters_are_read_once():
    asked = []

    def load(store, ref):
        asked.append(ref)
        return TINY, POLICIES[0], Letters()

    policies, store = AdapterPolicies(load, BASE), stored(FIRST[0])
    first, second = policies(store, REF), policies(store, REF)
    assert asked == [BASE]
    assert (first[1].base, second[1].base) == (POLICIES[0], None)
    assert first[1].files == second[1].files == FIRST[0]
    assert (first[1].rank, first[0], second[2]) == (4, second[0], first[2])
    with pytest.raises(ObjectMissing):
        policies(MemoryStore("nothing"), REF)


def test_adapters_of_other_weights_and_damaged_ones_are_refused():
    def load(store, ref):
        raise ObjectMissing(ref.prefix)

    other = BASE.model_copy(update={"sha256": "d" * 64})
    with pytest.raises(RunStopped, match=r"adapter_model.safetensors belong to weights of digest bbbbbbbbbbbb, but"):
        AdapterPolicies(load, other)(stored(FIRST[0]), REF)
    with pytest.raises(RunStopped, match=r"adapter_model.safetensors are damaged"):
        AdapterPolicies(load, BASE)(stored(FIRST[0] | {"adapter_model.safetensors": b"?"}), REF)
    with pytest.raises(RunStopped, match=r"/base, which this run's adapters are added to, are gone: restore them"):
        AdapterPolicies(load, BASE)(stored(FIRST[0]), REF)
