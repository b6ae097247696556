"""What every engine promises, whatever samples its tokens."""

import asyncio
import dataclasses
import math
import random

import pytest
from support.engines import CONTEXT, POLICIES, jax_engine, request, stream, text
from support.tiny import TINY
from support.vllm import SERVED, SERVED_POLICIES, WIDE, WIDE_POLICIES, OnAFake, RealServer, engine_at

from rollout.scripted import ScriptedEngine
from schemas.config import SglangServers
from schemas.errors import RequestError, RunStopped


def walk(token_ids, seed, version):
    """Any tokens, as long as stream, seed and version decide them."""
    draw = random.Random(f"{token_ids} {seed} {version}")
    tokens = [draw.randrange(TINY.vocab_size) for _ in range(CONTEXT)]
    return tokens, [-draw.random() for _ in tokens]


def scripted_engine(version=0):
    return ScriptedEngine(walk, version=version, max_length=CONTEXT, decode=text)


@pytest.fixture(scope="module")
def vllm_url():
    server = RealServer(SERVED, SERVED_POLICIES[0])
    yield server.url
    server.stop()


@pytest.fixture(scope="module")
def sglang_url():
    server = RealServer(WIDE, WIDE_POLICIES[0], kind=SglangServers)
    yield server.url
    server.stop()


def on_vllm(url, version):
    return engine_at(url, config=SERVED, policies=SERVED_POLICIES, version=version)


def on_sglang(url, version):
    return engine_at(url, config=WIDE, policies=WIDE_POLICIES, version=version, kind=SglangServers)


MAKERS = {"scripted": scripted_engine, "jax": jax_engine, "vllm, faked": OnAFake}


ON_REAL_SERVERS = {"vllm": (on_vllm, SERVED_POLICIES), "sglang": (on_sglang, WIDE_POLICIES)}


@pytest.fixture(params=[*MAKERS, *[pytest.param(name, marks=pytest.mark.slow) for name in ON_REAL_SERVERS]])
async def make(request):
    """Makes engines and closes them after the test."""
    made = []

    def make(version=0):
        if request.param in ON_REAL_SERVERS:
            url = request.getfixturevalue(f"{request.param}_url")
            made.append(ON_REAL_SERVERS[request.param][0](url, version))
        else:
            made.append(MAKERS[request.param](version))
        return made[-1]

    make.rounding = 5e-5 if request.param == "sglang" else 1e-5
    make.policies = ON_REAL_SERVERS[request.param][1] if request.param in ON_REAL_SERVERS else POLICIES

    yield make
    for engine in made:
        await engine.close()


async def test_a_turn_ends_at_max_tokens(make):
    done = await make().generate(request(max_tokens=12))
    assert (len(done.token_ids), done.finish) == (12, "length")
    assert len(done.logprobs) == len(done.versions) == 12
    assert all(p <= 0 and math.isfinite(p) for p in done.logprobs)
    assert done.queue_seconds >= 0
    assert done.generate_seconds >= 0


async def test_the_stop_token_is_kept_and_ends_the_turn(make):
    engine = make()
    free = await engine.generate(request())
    stop = free.token_ids[4]
    end = free.token_ids.index(stop) + 1
    done = await engine.generate(request(session="other", stop_ids=[stop]))
    assert (done.token_ids, done.finish) == (free.token_ids[:end], "stop")
    assert done.logprobs == pytest.approx(free.logprobs[:end], abs=make.rounding)


async def test_a_stop_token_at_the_limit_is_a_stop(make):
    engine = make()
    first = (await engine.generate(request(max_tokens=1))).token_ids[0]
    done = await engine.generate(request(session="other", max_tokens=1, stop_ids=[0, first]))
    assert (done.token_ids, done.finish) == ((first,), "stop")


async def test_a_stop_string_ends_the_turn_with_the_token_that_completes_it(make):
    engine = make()
    free = await engine.generate(request())
    said = text(free.token_ids)
    for number, (start, size) in enumerate([(0, 1), (3, 2), (2, 5), (8, 4), (11, 1)]):
        stop = said[start : start + size]
        end = said.index(stop) + size
        done = await engine.generate(request(session=f"s{number}", stop=("?", stop, "not there")))
        assert (done.token_ids, done.finish) == (free.token_ids[:end], "stop")
        assert len(done.logprobs) == len(done.versions) == end
        later = request((*request().token_ids, *done.token_ids), session=f"s{number}", seed=9)
        assert (await engine.generate(later)).token_ids == (
            await engine.generate(dataclasses.replace(later, session=f"fresh {number}"))
        ).token_ids


async def test_the_first_of_a_stop_token_and_a_stop_string_counts(make):
    engine = make()
    free = await engine.generate(request())
    last = next(i for i in range(4, 10) if free.token_ids[i] not in free.token_ids[:i])
    for at, end in ((2, 3), (last + 1, last + 1)):
        string = text(free.token_ids[at - 1 : at + 1])
        done = await engine.generate(request(session=str(at), stop_ids=[free.token_ids[last]], stop=(string,)))
        assert (done.token_ids, done.finish) == (free.token_ids[:end], "stop")


async def test_a_stop_string_is_not_looked_for_in_the_prompt(make):
    done = await make().generate(request(stop=(text(request().token_ids[-2:]),)))
    assert done.token_ids == (await make().generate(request())).token_ids


async def test_a_deadline_takes_the_place_away(make):
    engine = make(version=-1)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await engine.generate(request(session="late"))
    await engine.update_weights(make.policies[0], 0)
    await engine.generate(request())
    assert engine.counters()["generated_tokens"] == 12


async def test_a_turn_ends_where_the_context_is_full(make):
    engine = make()
    for length in (CONTEXT - 3, CONTEXT - 1):
        done = await engine.generate(request(stream(length), session=str(length)))
        assert (length + len(done.token_ids), done.finish) == (CONTEXT, "context")


@pytest.mark.parametrize(
    "wrong",
    [
        request(stream(CONTEXT)), request(()), request(max_tokens=0), request(temperature=-1.0),
        request(temperature=math.nan), request(seed=-1), request(seed=2**32), request(top_p=0.0), request(top_p=1.1),
        request(top_p=math.nan), request(top_k=-1), request(stop=("",)),
    ],
    ids=["full", "empty", "nothing", "cold", "nan", "negative", "large", "none", "more", "nan p", "minus", "no text"],
)  # fmt: skip
async def test_a_request_that_cannot_be_served_fails_alone(make, wrong):
    engine = make()
    good = asyncio.ensure_future(engine.generate(request(session="good")))
    with pytest.raises(RequestError):
        await engine.generate(wrong)
    assert (await good).finish == "length"
    assert (await engine.generate(request(session="later"))).token_ids == (await good).token_ids


async def test_samples_depend_on_the_seed_and_not_on_the_neighbours(make):
    alone = await make().generate(request(seed=5))
    engine = make()
    others = [request(stream(3 + 9 * i, i), session=f"n{i}", seed=i, temperature=i / 3) for i in range(7)]
    *_, among = await asyncio.gather(*[engine.generate(r) for r in (*others, request(seed=5))])
    assert among.token_ids == alone.token_ids
    assert among.logprobs == pytest.approx(alone.logprobs, abs=make.rounding)
    assert (await engine.generate(request(session="t", seed=6))).token_ids != alone.token_ids


async def test_a_later_turn_is_sampled_as_if_it_were_the_first(make):
    engine = make()
    tokens, turns = stream(9), []
    for turn in range(4):
        asked = request(tokens, session="long", seed=turn)
        turns.append((asked, await engine.generate(asked)))
        tokens += turns[-1][1].token_ids + stream(5 + turn, turn)
    for asked, done in turns:  # a server has one owner: the other engines come when this one has done its part
        fresh = await make().generate(dataclasses.replace(asked, session="s"))
        assert done.token_ids == fresh.token_ids
        assert done.logprobs == pytest.approx(fresh.logprobs, abs=make.rounding)


async def test_a_released_session_can_begin_again(make):
    engine = make()
    first = await engine.generate(request())
    engine.release("s")
    engine.release("never heard of")
    assert (await engine.generate(request())).token_ids == first.token_ids


async def test_requests_wait_for_the_first_policy(make):
    engine = make(version=-1)
    assert engine.version == -1
    waiting = asyncio.ensure_future(engine.generate(request()))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    await engine.update_weights(make.policies[0], 0)
    done = await waiting
    assert set(done.versions) == {0}
    assert done.token_ids == (await make().generate(request())).token_ids


async def test_tokens_know_the_version_that_sampled_them(make):
    engine = make()
    assert set((await engine.generate(request())).versions) == {0}
    await engine.update_weights(make.policies[1], 3)
    assert engine.version == 3
    done = await engine.generate(request(session="new"))
    assert set(done.versions) == {3}


async def test_weights_never_go_back(make):
    engine = make()
    await engine.update_weights(make.policies[1], 4)
    with pytest.raises(ValueError, match="policy 3 is older than policy 4"):
        await engine.update_weights(make.policies[0], 3)
    await engine.update_weights(make.policies[1], 4)
    assert engine.version == 4


async def test_updates_that_overtake_each_other_all_end(make):
    engine = make()
    await asyncio.gather(*[engine.update_weights(make.policies[v % 2], v) for v in range(1, 5)])
    assert engine.version == 4


async def test_a_cancelled_request_makes_room(make):
    engine = make()
    running = [asyncio.ensure_future(engine.generate(request(session=f"c{i}", max_tokens=100))) for i in range(6)]
    await asyncio.sleep(0)
    for task in running:
        task.cancel()
    assert (await engine.generate(request())).finish == "length"
    assert (await engine.generate(request(session="c0"))).token_ids == (await make().generate(request())).token_ids
    await asyncio.wait(running)


async def test_counters_only_grow(make):
    engine = make()
    before = engine.counters()
    await engine.generate(request(stream(7), max_tokens=12))
    after = engine.counters()
    assert before.keys() == after.keys()
    assert all(after[k] >= before[k] for k in before)
    assert (after["prompt_tokens"], after["generated_tokens"]) == (7, 12)


async def test_a_closed_engine_refuses(make):
    engine = make(version=-1)
    waiting = asyncio.ensure_future(engine.generate(request()))
    await asyncio.sleep(0)
    await engine.close()
    for attempt in (waiting, engine.generate(request())):
        with pytest.raises(RunStopped, match="closed"):
            await attempt
