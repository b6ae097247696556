"""The vLLM engine on fake servers: what goes wrong with servers, and what becomes of the requests that they held."""

import asyncio
import dataclasses

import numpy as np
import pytest
from support.engines import CONTEXT, POLICIES, jax_engine, learner_logprobs, request, stream
from support.fake_vllm import FakeVllm
from support.probes import learner_probe
from support.tiny import TINY
from support.vllm import Letters, engine_at

from models.pure import init_params
from rollout import vllm_client, vllm_fleet
from rollout.probe import EngineUnproved, Prover
from schemas.errors import RequestError, RunStopped

UNTIED = dataclasses.replace(TINY, tie_word_embeddings=False)
WIDE = dataclasses.replace(TINY, hidden_size=32)


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(vllm_client, "BUSY_SECONDS", (0.01, 0.05))
    monkeypatch.setattr(vllm_fleet, "BACK_SECONDS", 0.01)


@pytest.fixture
async def fakes():
    """Makes fake servers, and engines on them by `on`; ends both."""
    servers, engines = [], []

    async def make(**options):
        fake = FakeVllm(TINY, POLICIES[0])
        for name, value in options.items():
            setattr(fake, name, value)
        servers.append(fake)
        await fake.start()
        return fake

    def on(*fakes, **options):
        engines.append(engine_at(*[f.url for f in fakes], **options))
        return engines[-1]

    make.on = on
    yield make
    for engine in engines:
        await engine.close()
    for fake in servers:
        await fake.stop()


async def plain(asked):
    engine = jax_engine()
    done = await engine.generate(asked)
    await engine.close()
    return done


async def eventually(condition, seconds=60.0):
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.005)


async def test_log_probs_are_the_learners_and_spans_name_the_versions(fakes):
    engine = fakes.on(await fakes(answers_after=2))
    running = asyncio.ensure_future(engine.generate(request(max_tokens=100)))
    await eventually(lambda: engine._fleet._servers and engine._fleet._servers[0].in_flight)
    await engine.update_weights(POLICIES[1], 7)
    done = await running
    assert set(done.versions) <= {0, 7} and done.versions[-1] == 7
    later = await engine.generate(request(session="later"))
    wanted = learner_logprobs(POLICIES[1], (*request().token_ids, *later.token_ids), len(later.token_ids))
    assert np.abs(np.subtract(later.logprobs, wanted)).max() < 1e-4


@pytest.mark.parametrize("status", [429, 503])
async def test_a_busy_server_is_asked_again(fakes, status):
    fake = await fakes(statuses=[status] * 4)
    done = await fakes.on(fake).generate(request())
    assert (done.token_ids, fake.asked) == ((await plain(request())).token_ids, 5)


async def test_a_server_that_fails_once_is_asked_again_and_one_that_goes_on_failing_is_named(fakes):
    fake = await fakes(statuses=[500, 500])
    engine = fakes.on(fake)
    assert (await engine.generate(request())).token_ids == (await plain(request())).token_ids
    fake.statuses = [500] * 3
    with pytest.raises(RunStopped, match=rf"{fake.url} failed 3 times \(500 at /inference/v1/generate: as ordered\)"):
        await engine.generate(request())


async def test_a_refused_request_is_not_repeated(fakes):
    fake = await fakes(statuses=[400])
    with pytest.raises(RequestError, match=r"refuses the request \(400 .* as ordered"):
        await fakes.on(fake).generate(request())
    assert fake.asked == 1


async def test_no_more_requests_run_at_once_than_there_are_slots(fakes):
    fake = await fakes(seconds=0.02)
    engine = fakes.on(fake, slots=3)
    done = await asyncio.gather(*[engine.generate(request(session=str(i), seed=i)) for i in range(12)])
    assert fake.most == 3
    assert max(d.queue_seconds for d in done) >= 0.02


async def test_requests_are_shared_by_load_and_sessions_stay(fakes):
    some = [await fakes(seconds=0.02), await fakes(seconds=0.02)]
    engine = fakes.on(*some)
    await asyncio.gather(*[engine.generate(request(session=str(i), seed=i)) for i in range(8)])
    assert [f.most for f in some] == [4, 4]
    before = [f.asked for f in some]
    for turn in range(4):
        await engine.generate(request(stream(8 + turn), session="same"))
    assert sorted(f.asked - b for f, b in zip(some, before, strict=True)) == [0, 4]


async def test_cancelling_ends_the_request_at_the_server(fakes):
    fake = await fakes(seconds=60.0)
    engine = fakes.on(fake, slots=1)
    running = asyncio.ensure_future(engine.generate(request()))
    await eventually(lambda: fake.running == 1)
    running.cancel()
    await eventually(lambda: fake.running == 0)
    fake.seconds = 0.0
    assert (await engine.generate(request(session="next"))).finish == "length"


async def test_a_request_that_takes_too_long_fails_alone(fakes):
    fake = await fakes(seconds=60.0)
    engine = fakes.on(fake, request_seconds=0.05)
    with pytest.raises(RunStopped, match=r"longer over a turn than rollout.vllm.request_seconds = 0.05"):
        await engine.generate(request())
    await eventually(lambda: fake.running == 0)


async def test_another_server_takes_over_from_a_dead_one_with_the_same_seed(fakes):
    dying, other = await fakes(), await fakes()
    engine = fakes.on(dying, other)
    await engine.generate(request(session="a"))
    dying.dies_at = dying.asked + 1
    asked = [request(session=f"s{i}", seed=i) for i in range(4)]
    done = await asyncio.gather(*[engine.generate(r) for r in asked])
    assert [d.token_ids for d in done] == [(await plain(r)).token_ids for r in asked]
    assert dying._runner is None and other.asked >= 3
    await dying._stopping


async def test_an_update_waits_for_a_server_that_is_away_and_names_it_in_the_end(fakes):
    dying, other = await fakes(), await fakes()
    engine = fakes.on(dying, other, start_seconds=0.2)
    await engine.start()
    await engine.score(stream(9))
    await dying.stop()
    await asyncio.gather(*[engine.generate(request(session=str(s))) for s in range(3)])
    with pytest.raises(RunStopped, match=rf"{dying.url} went away \(.* did not come back within 0.2 s"):
        await engine.update_weights(POLICIES[1], 1)


async def back(fake):
    """Start a server again once it is gone."""
    await eventually(lambda: fake._runner is None)
    await fake._stopping
    fake.dies_at = 0
    await fake.start()


async def test_a_server_that_comes_back_gets_the_newest_weights_and_is_checked(fakes):
    fake = await fakes()
    engine = fakes.on(fake)
    await engine.update_weights(POLICIES[1], 3)
    probe = learner_probe(TINY, POLICIES[1])
    prover = Prover(engine, 1e-4)
    await prover.update(3, probe)
    fake.dies_at, loads = fake.asked + 1, fake.loads
    bringing_back = asyncio.ensure_future(back(fake))
    done = await engine.generate(request())
    await bringing_back
    wanted = learner_logprobs(POLICIES[1], (*request().token_ids, *done.token_ids), len(done.token_ids))
    assert np.abs(np.subtract(done.logprobs, wanted)).max() < 1e-4
    assert (set(done.versions), fake.loads) == ({3}, loads + 1)
    assert engine.counters()["engine_restarts"] == 1
    await prover.update(3, probe)


async def started_again(fake):
    await fake.stop()
    await fake.start()


@pytest.mark.parametrize("first", ["requests", "the probe", "an update"])
async def test_a_server_that_was_started_again_unnoticed_gets_the_newest_weights(fakes, first):
    fake = await fakes()
    engine = fakes.on(fake)
    await engine.update_weights(POLICIES[1], 3)
    prover = Prover(engine, 1e-4)
    await prover.update(3, learner_probe(TINY, POLICIES[1]))
    await started_again(fake)
    if first == "the probe":
        await prover.update(3, learner_probe(TINY, POLICIES[1]))
    if first == "an update":
        await engine.update_weights(POLICIES[1], 4)
    asked = [request(session=str(i), seed=i) for i in range(4)]
    done = await asyncio.gather(*[engine.generate(r) for r in asked])
    assert {v for d in done for v in d.versions} == {4 if first == "an update" else 3}
    for r, d in zip(asked, done, strict=True):
        wanted = learner_logprobs(POLICIES[1], (*r.token_ids, *d.token_ids), len(d.token_ids))
        assert np.abs(np.subtract(d.logprobs, wanted)).max() < 1e-4
    assert engine.counters()["engine_restarts"] == (0 if first == "an update" else 1)


async def test_a_server_that_was_started_again_in_the_middle_of_turns_samples_them_again(fakes):
    fake = await fakes()
    engine = fakes.on(fake)
    await engine.generate(request())
    fake.seconds = 60.0
    running = [asyncio.ensure_future(engine.generate(request(session=str(i), seed=i))) for i in range(4)]
    await eventually(lambda: fake.running == 4)
    fake.seconds = 0.0
    await started_again(fake)
    done = await asyncio.gather(*running)
    assert [d.token_ids for d in done] == [(await plain(request(seed=i))).token_ids for i in range(4)]


async def test_a_server_that_comes_back_as_another_model_is_named(fakes):
    fake = await fakes()
    engine = fakes.on(fake)
    await engine.generate(request())
    fake._made, fake.dies_at = (WIDE, init_params(WIDE, 0), *fake._made[2:]), fake.asked + 1
    bringing_back = asyncio.ensure_future(back(fake))
    with pytest.raises(RunStopped, match=rf"started again in another way: the server at {fake.url} serves another mod"):
        await engine.generate(request())
    await bringing_back


async def test_a_request_that_is_given_up_leaves_its_server_time_to_come_back(fakes):
    fake = await fakes()
    engine = fakes.on(fake)
    done = await engine.generate(request())
    await fake.stop()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await engine.generate(request())
    await fake.start()
    assert (await engine.generate(request())).token_ids == done.token_ids
    assert engine.counters()["engine_restarts"] == 1


async def test_a_server_that_comes_back_with_other_weights_is_not_used(fakes):
    fake = await fakes()
    engine = fakes.on(fake)
    await engine.update_weights(POLICIES[1], 3)
    await engine.score(stream(9))
    fake.dies_at, fake.ignores_updates = fake.asked + 1, True
    bringing_back = asyncio.ensure_future(back(fake))
    with pytest.raises(RunStopped, match="was started again and gives the probe log-probs up to"):
        await engine.generate(request())
    await bringing_back


async def test_a_server_that_stays_away_is_named_with_the_cause(fakes):
    fake = await fakes()
    engine = fakes.on(fake, start_seconds=0.2)
    await engine.generate(request())
    await fake.stop()
    with pytest.raises(RunStopped, match=rf"{fake.url} went away \(ConnectError.* did not come back within 0.2 s"):
        await engine.generate(request())


async def test_a_server_that_dies_again_and_again_is_given_up(fakes):
    fake = await fakes()
    engine = fakes.on(fake, restarts=1)
    for _ in range(2):
        await engine.generate(request())
        fake.dies_at = fake.asked + 1
        bringing_back = asyncio.ensure_future(back(fake))
        if _ == 0:
            await engine.generate(request())
    with pytest.raises(RunStopped, match=r"more often than rollout\.vllm\.restarts = 1 allows"):
        await engine.generate(request())
    await bringing_back


async def test_a_server_that_dies_of_weights_twice_is_given_up(fakes):
    fake = await fakes()
    engine = fakes.on(fake)
    await engine.generate(request())
    fake.drops = 2
    with pytest.raises(RunStopped, match=f"vLLM at {fake.url} died before it answered anything"):
        await engine.update_weights(POLICIES[1], 1)
    assert not fake.drops


async def test_a_server_that_dies_of_its_first_weights_is_given_up(fakes):
    fake = await fakes(drops=1)
    with pytest.raises(RunStopped, match=f"vLLM at {fake.url} died before it answered anything"):
        await fakes.on(fake).start()


@pytest.mark.parametrize("fault", ["ignores_updates", "keeps_the_head"])
async def test_the_probe_catches_servers_that_do_not_take_weights_whole(fakes, fault):
    fake = FakeVllm(UNTIED, POLICIES[0] | {"lm_head": POLICIES[0]["model"]["embed_tokens"]})
    await fake.start()
    engine = engine_at(fake.url)
    prover = Prover(engine, 1e-3)
    await engine.start()
    setattr(fake, fault, True)
    with pytest.raises(EngineUnproved, match=f"vLLM at {fake.url} does not hold policy 0 with its tokens renumbered"):
        await prover.start(POLICIES[0], 0, learner_probe(TINY, POLICIES[0]))
    await engine.close()
    await fake.stop()


async def test_every_server_is_proved(fakes):
    good, bad = await fakes(), await fakes()
    engine = fakes.on(good, bad)
    await engine.start()
    bad.ignores_updates = True
    with pytest.raises(EngineUnproved, match=f"vLLM at {bad.url} does not hold"):
        await Prover(engine, 1e-3).start(POLICIES[0], 0, learner_probe(TINY, POLICIES[0]))


async def test_ids_beyond_the_tokenizer_are_banned_and_noticed(fakes):
    fake = await fakes()
    engine = fakes.on(fake, tokenizer=Letters(30))
    with pytest.raises(RunStopped, match=rf"{fake.url} sampled token 3\d, but the tokenizer has 30"):
        await asyncio.gather(*[engine.generate(request(session=str(s), seed=s, max_tokens=40)) for s in range(4)])
    assert set(fake.bodies[-1]["sampling_params"]["logit_bias"]) == {str(t) for t in range(30, 37)}
    with pytest.raises(RequestError, match="token 37 is not in the model's vocabulary of 37"):
        await engine.generate(request((1, 37)))


async def test_a_server_that_counts_from_elsewhere_is_noticed(fakes):
    fake = await fakes(adds=500)
    with pytest.raises(RunStopped, match="but the tokenizer has 37: it serves another model"):
        await fakes.on(fake).generate(request())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"healthy": False}, "no vLLM answers at {url}: start it, or correct rollout.vllm.urls"),
        ({"extension": False}, "the server at {url} lacks what weight updates need"),
        ({"_context": CONTEXT - 1}, "the server at {url} has a context of 127 tokens, less than rollout.max_length"),
    ],
    ids=["nobody", "plain", "short"],
)
async def test_servers_that_are_of_no_use_are_refused_before_work(fakes, options, message):
    fake = await fakes()
    for name, value in options.items():
        setattr(fake, name, value)
    with pytest.raises(RequestError, match=message.format(url=fake.url)):
        await fakes.on(fake).start()


async def test_a_url_where_nothing_listens_is_refused(fakes):
    fake = await fakes()
    await fake.stop()
    with pytest.raises(RequestError, match=f"no vLLM answers at {fake.url}"):
        await fakes.on(fake).start()


async def test_a_server_of_another_model_is_refused(fakes):
    fake = FakeVllm(WIDE, init_params(WIDE, 0))
    await fake.start()
    with pytest.raises(RequestError, match=f"{fake.url} serves another model: its hidden_size is 32, and that of this"):
        await fakes.on(fake).start()
    assert fake._going.is_set() and not fake.loads
    await fake.stop()


async def test_a_server_that_somebody_else_updates_is_noticed(fakes):
    fake = await fakes()
    first, second = fakes.on(fake), fakes.on(fake)
    await first.generate(request())
    await second.generate(request())
    with pytest.raises(RunStopped, match="which this process did not give it: every worker and evaluation needs"):
        await first.generate(request())


async def test_a_server_that_tells_no_versions_is_refused(fakes):
    fake = await fakes(keeps_no_versions=True)
    with pytest.raises(RunStopped, match="does not tell the weights of every token"):
        await fakes.on(fake).generate(request())
