"""An engine proves that it holds the weights it was given; one that does not is caught, and the worker with it."""

import asyncio
import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.engines import POLICIES, jax_engine
from support.probes import learner_probe
from support.rollouts import BASE, config, load, publish, put_window, sealed, stage, workers
from support.tiny import TINY

from rollout import make_engine, probe
from rollout.jax_kernels import score
from rollout.probe import EngineUnproved, Prover, renumbered
from rollout.scripted import ScriptedEngine
from rollout.worker import Worker
from schemas.errors import RunStopped
from schemas.manifest import Probe

UNTIED = dataclasses.replace(TINY, tie_word_embeddings=False)


def probe_of(params: Any) -> Probe:
    return learner_probe(TINY, params)


def moved(params: Any, by: float) -> Any:
    return jax.tree.map(lambda x: x + by, params)


class Holding:
    """An engine that computes with the embedding, the output head and the layers that `take` lets it have."""

    def __init__(self, take: Callable[[Any, Any], Any]) -> None:
        self._take, self._params = take, self._whole(POLICIES[0])

    def _whole(self, params: Any) -> Any:
        return params | {"lm_head": params["model"]["embed_tokens"]}

    async def update_weights(self, params: Any, version: int) -> None:
        self._params = self._take(self._params, self._whole(params))

    async def score(self, token_ids: tuple[int, ...]) -> dict[str, tuple[float, ...]]:
        found = score(UNTIED, self._params, np.asarray(token_ids, np.int32), jnp.int32(len(token_ids)))
        return {"the fake": tuple(np.asarray(found).tolist())}


TAKES = {
    "all": lambda old, new: new,
    "nothing": lambda old, new: old,
    "all but the head": lambda old, new: new | {"lm_head": old["lm_head"]},
    "the head alone": lambda old, new: old | {"lm_head": new["lm_head"]},
    "all but a norm": lambda old, new: new | {"model": new["model"] | {"norm": old["model"]["norm"]}},
}


async def test_the_jax_engine_proves_itself_and_its_updates() -> None:
    engine = jax_engine()
    prover = Prover(engine, 1e-5)
    await prover.start(POLICIES[0], 0, probe_of(POLICIES[0]))
    await engine.update_weights(POLICIES[1], 1)
    await prover.update(1, probe_of(POLICIES[1]))
    assert prover.counters() == {"probe_passed": 2, "probe_blind": 0}
    await engine.close()


@pytest.mark.parametrize("take", [t for t in TAKES if t != "all but a norm"])
async def test_at_the_start_an_engine_must_follow_a_renumbered_vocabulary(take: str) -> None:
    prover = Prover(Holding(TAKES[take]), 1e-3)
    if take == "all":
        await prover.start(POLICIES[0], 0, probe_of(POLICIES[0]))
        assert prover.counters() == {"probe_passed": 1, "probe_blind": 0}
    else:
        with pytest.raises(EngineUnproved, match="the fake does not hold policy 0 with its tokens renumbered"):
            await prover.start(POLICIES[0], 0, probe_of(POLICIES[0]))


@pytest.mark.parametrize("take", TAKES)
async def test_an_update_that_was_not_taken_whole_is_caught(take: str) -> None:
    engine = Holding(TAKES[take])
    prover = Prover(engine, 1e-3)
    await prover.update(0, probe_of(POLICIES[0]))
    await engine.update_weights(POLICIES[1], 1)
    if take == "all":
        await prover.update(1, probe_of(POLICIES[1]))
    else:
        with pytest.raises(EngineUnproved, match=r"the fake does not hold policy 1: .* up to \d.*docs/engines.md"):
            await prover.update(1, probe_of(POLICIES[1]))


async def test_other_weights_are_caught_at_the_start() -> None:
    with pytest.raises(EngineUnproved, match="does not hold policy 0: "):
        await Prover(Holding(TAKES["all"]), 1e-3).start(POLICIES[1], 0, probe_of(POLICIES[1]))


async def test_what_is_not_a_number_is_no_proof() -> None:
    broken = moved(POLICIES[0], math.nan)
    engine = Holding(TAKES["all"])
    await engine.update_weights(broken, 1)
    for wanted in (broken, POLICIES[0]):
        with pytest.raises(EngineUnproved):
            await Prover(engine, 1e-3).update(1, probe_of(wanted))


async def test_updates_too_small_to_see_are_blind_and_ignoring_many_is_caught() -> None:
    engine = Holding(TAKES["nothing"])
    prover = Prover(engine, 1e-3)
    await prover.update(0, probe_of(POLICIES[0]))
    with pytest.raises(EngineUnproved):
        for version in range(1, 1000):
            await prover.update(version, probe_of(moved(POLICIES[0], 1e-6 * version)))
            assert prover.counters() == {"probe_passed": 1, "probe_blind": version}
    assert prover.counters()["probe_blind"] > 1


async def test_a_vocabulary_whose_tokens_are_alike_proves_nothing_at_the_start() -> None:
    alike = jax.tree.map(jnp.asarray, POLICIES[0])
    table = alike["model"]["embed_tokens"]["weight"]
    alike["model"]["embed_tokens"] = {"weight": jnp.broadcast_to(table[0], table.shape)}
    engine = Holding(TAKES["nothing"])
    engine._params = engine._whole(alike)
    prover = Prover(engine, 1e-3)
    await prover.start(alike, 0, probe_of(alike))
    assert prover.counters() == {"probe_passed": 0, "probe_blind": 1}


def test_a_renumbered_model_is_the_same_model() -> None:
    plain = probe_of(POLICIES[0])
    other = scored(renumbered(POLICIES[0], 5), tuple((t + 5) % TINY.vocab_size for t in plain.tokens))
    assert np.abs(np.subtract(other, plain.logprobs)).max() < 1e-5


def scored(params: Any, tokens: tuple[int, ...]) -> tuple[float, ...]:
    found = score(TINY, params, np.asarray(tokens, np.int32), jnp.int32(len(tokens)))
    return tuple(np.asarray(found).tolist())


async def test_an_engine_without_weights_has_nothing_to_prove() -> None:
    engine = ScriptedEngine(lambda *_: [1], version=0)
    prover = Prover(engine, 1e-3)
    await prover.start({}, 0, probe_of(POLICIES[0]))
    await prover.update(1, probe_of(POLICIES[1]))
    assert prover.counters() == {"probe_passed": 0, "probe_blind": 0}


def told(version: int) -> Probe:
    return Probe(tokens=(1, 2), logprobs=(-1.0 - version,))


class Forgetful(ScriptedEngine):
    """Claims the first policy's log-probs forever, and takes its time to say so."""

    scored = 0

    async def score(self, token_ids: tuple[int, ...]) -> dict[str, tuple[float, ...]]:
        if self.version > 0:
            await asyncio.sleep(0.3)
            type(self).scored += 1
        return {"the forgetful engine": told(0).logprobs}


class Speechless(Forgetful):
    """Fails where it should prove a later policy."""

    async def score(self, token_ids: tuple[int, ...]) -> dict[str, tuple[float, ...]]:
        found = await super().score(token_ids)
        if self.version > 0:
            raise RunStopped("the engine went away")
        return found


@pytest.mark.parametrize(
    ("kind", "error", "message"),
    [
        (Forgetful, EngineUnproved, "the forgetful engine does not hold policy 1"),
        (Speechless, RunStopped, "the engine went away"),
    ],
)
async def test_a_worker_stops_and_seals_nothing_of_an_engine_that_is_not_proved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[Forgetful], error: type[RunStopped], message: str
) -> None:
    monkeypatch.setattr(kind, "scored", 0)
    monkeypatch.setattr(make_engine, "ScriptedEngine", lambda *a, **k: kind(*a, seconds=0.02, **k))
    monkeypatch.setattr(probe.Prover, "start", probe_only)
    (tmp_path / "scripts.py").write_text("from support.rollouts import give_up, solve")
    store, spec = stage(config(rollout={"max_concurrency": 8}), str(tmp_path), published=False)
    for version in (0, 1):
        publish(store, version, told(version))
    put_window(store, 2)
    working = asyncio.ensure_future(
        Worker(store, BASE, spec, load=load, report=lambda *_, **__: None, stop=lambda: False).run()
    )
    async with asyncio.timeout(60):
        while len(sealed(store)) < 4:
            await asyncio.sleep(0.005)
    put_window(store, 600, low=2)
    async with asyncio.timeout(60):
        while len(sealed(store)) < 40:
            await asyncio.sleep(0.005)
    put_window(store, 600, version=1, low=2)
    with pytest.raises(error, match=message):
        await working
    assert kind.scored == 1
    rows, (state,) = sealed(store), workers(store)
    assert {v for row in rows for v in row.versions} == {0}
    assert state.state == "left"
    assert state.counters["abandoned"] > 0
    assert (state.counters["probe_passed"], state.counters["probe_blind"]) == (1, 0)


async def test_a_worker_closes_an_engine_that_is_not_proved_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[int] = []

    class Closing(Forgetful):
        async def close(self) -> None:
            closed.append(self.version)

    monkeypatch.setattr(make_engine, "ScriptedEngine", Closing)
    monkeypatch.setattr(probe.Prover, "start", probe_only)
    (tmp_path / "scripts.py").write_text("from support.rollouts import give_up, solve")
    store, spec = stage(config(), str(tmp_path), published=False)
    publish(store, 1, told(1))
    put_window(store, 2, version=1)
    working = Worker(store, BASE, spec, load=load, report=lambda *_, **__: None, stop=lambda: False).run()
    with pytest.raises(EngineUnproved, match="the forgetful engine does not hold policy 1"):
        await working
    assert closed == [1]
    assert not sealed(store)


async def probe_only(self: Prover, params: Any, version: int, probe: Probe) -> None:
    """The start without its updates, which scripted weights have no head for."""
    await self.update(version, probe)


@pytest.mark.parametrize("take", [t for t in TAKES if t != "all but a norm"])
async def test_without_a_learner_an_engine_is_tried_against_itself(take: str) -> None:
    engine = Holding(TAKES[take])
    if take == "all":
        await Prover(engine, 1e-3).alone(POLICIES[0], 0, 24)
    else:
        with pytest.raises(EngineUnproved, match="with its tokens renumbered"):
            await Prover(engine, 1e-3).alone(POLICIES[0], 0, 24)
