"""The embedded engine: numbers, kept keys and values, updates in flight, failures, compilation."""

import asyncio
import random
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.engines import CONTEXT, POLICIES, PROMPT, jax_engine, kept, learner_logprobs, next_logits, request, stream
from support.tiny import TINY

from rollout import jax_engine as module
from schemas.errors import RequestError, RunStopped

COMPILED = "/jax/core/compile/backend_compile_duration"


@pytest.fixture
async def make():
    """Makes engines and closes them after the test."""
    made = []

    def make(**options):
        made.append(jax_engine(**options))
        return made[-1]

    yield make
    for engine in made:
        await engine.close()


@pytest.fixture
def gate(monkeypatch):
    """Holds the engine before its third decoding dispatch (those that only compile are not counted)."""
    reached, go, count, real = threading.Event(), threading.Event(), [0], module.decode

    def decode(*args, **options):
        count[0] += bool(args[4].active.any())
        if count[0] == 3:
            reached.set()
            go.wait(300)
        return real(*args, **options)

    monkeypatch.setattr(module, "decode", decode)
    yield reached, go
    go.set()


async def test_logprobs_are_the_learner_s(make):
    """Also over prompts of several chunks and attention spans."""
    engine = make(max_length=700)
    for length in (1, 7, 90, 600):
        tokens = stream(length)
        done = await engine.generate(request(tokens, session=str(length), temperature=0.7, max_tokens=40))
        expected = learner_logprobs(POLICIES[0], tokens + done.token_ids, 40)
        assert done.logprobs == pytest.approx(expected, abs=1e-5)


async def test_logprobs_of_later_turns_are_the_learner_s(make):
    engine, tokens = make(), stream(9)
    for turn in range(4):
        done = await engine.generate(request(tokens, seed=turn))
        expected = learner_logprobs(POLICIES[0], tokens + done.token_ids, len(done.token_ids))
        assert done.logprobs == pytest.approx(expected, abs=1e-5)
        tokens += done.token_ids + stream(6, turn)


async def test_temperature_0_takes_the_likeliest(make):
    tokens = PROMPT
    done = await make().generate(request(tokens, temperature=0.0, max_tokens=5))
    for token in done.token_ids:
        assert token == int(np.argmax(next_logits(POLICIES[0], tokens)))
        tokens += (token,)


@pytest.mark.parametrize("temperature", [0.5, 1.5])
async def test_samples_follow_the_tempered_distribution(make, temperature):
    engine, count = make(), 2000
    asked = [request(session=str(i), seed=i, max_tokens=1, temperature=temperature) for i in range(count)]
    done = await asyncio.gather(*[engine.generate(r) for r in asked])
    seen = np.bincount([d.token_ids[0] for d in done], minlength=TINY.vocab_size) / count
    expected = np.asarray(jax.nn.softmax(next_logits(POLICIES[0], PROMPT) / temperature))
    assert np.abs(seen - expected).sum() / 2 < 0.06


@pytest.mark.parametrize("truncation", [{"top_k": 3}, {"top_p": 0.6}, {"top_k": 6, "top_p": 0.7}])
async def test_truncated_samples_follow_what_is_left_of_the_distribution(make, truncation):
    """And the log-probs stay those of the whole one."""
    engine, count = make(), 1000
    asked = [request(session=str(i), seed=i, max_tokens=1, temperature=1.3, **truncation) for i in range(count)]
    done = await asyncio.gather(*[engine.generate(r) for r in asked])
    logits = next_logits(POLICIES[0], PROMPT)
    seen = np.bincount([d.token_ids[0] for d in done], minlength=TINY.vocab_size) / count
    stay = kept(logits / np.float32(1.3), truncation.get("top_p", 1), truncation.get("top_k", 0))
    expected = np.asarray(jax.nn.softmax(np.where(stay, logits / 1.3, -np.inf)))
    assert not seen[~stay].any()
    assert np.abs(seen - expected).sum() / 2 < 0.06
    raw = np.asarray(jax.nn.log_softmax(logits))
    assert [d.logprobs[0] for d in done] == pytest.approx([raw[d.token_ids[0]] for d in done], abs=1e-5)


async def test_stop_strings_need_a_decoder(make):
    engine = make(decode=None)
    with pytest.raises(RequestError, match="stop strings need text"):
        await engine.generate(request(stop=("x",)))
    assert (await engine.generate(request())).finish == "length"


async def test_every_place_draws_anew(make):
    """At such a temperature the noise alone decides."""
    done = await make().generate(request(temperature=1e6, max_tokens=60))
    assert len(set(done.token_ids)) > TINY.vocab_size / 2


async def test_a_session_keeps_its_keys_and_values(make):
    engine, tokens = make(), stream(30)
    done = await engine.generate(request(tokens))
    await engine.generate(request(tokens + done.token_ids + stream(5)))
    assert engine.counters()["prefilled_tokens"] == 29 + 5  # and the last sampled token, less the stream's last


async def test_a_prompt_is_filled_in_once_for_a_group(make):
    """Also where it has not been filled in yet when the others come, and where only a part is common."""
    engine, prompt = make(), stream(60)
    asked = [request(prompt, session=f"g{i}", seed=i) for i in range(3)]
    asked += [request(prompt[:40] + stream(9, 1), session="other", seed=1)]
    done = await asyncio.gather(*[engine.generate(r) for r in asked])
    assert engine.counters()["prefilled_tokens"] == 59 + 8
    assert engine.counters()["prompt_tokens"] == 3 * 60 + 49
    for one, answer in zip(asked, done, strict=True):
        expected = learner_logprobs(POLICIES[0], one.token_ids + answer.token_ids, 12)
        assert answer.logprobs == pytest.approx(expected, abs=1e-5)
        alone = make()
        assert (await alone.generate(one)).token_ids == answer.token_ids
        await alone.close()


async def test_a_prompt_is_filled_in_by_others_when_its_first_request_is_cancelled(make, gate):
    reached, go = gate
    engine, prompt = make(), stream(110)
    ahead = asyncio.ensure_future(engine.generate(request(session="ahead", max_tokens=60)))
    await asyncio.to_thread(reached.wait, 300)
    asked = [request(prompt, session=str(i), seed=i) for i in range(3)]
    running = [asyncio.ensure_future(engine.generate(r)) for r in asked]
    await asyncio.sleep(0)
    running[0].cancel()
    go.set()
    for one, task in zip(asked[1:], running[1:], strict=True):
        answer = await task
        assert answer.logprobs == pytest.approx(
            learner_logprobs(POLICIES[0], one.token_ids + answer.token_ids, 12), abs=1e-5
        )
    await ahead


async def test_no_prefix_is_shared_across_versions(make):
    engine, prompt = make(), stream(60)
    await engine.generate(request(prompt, session="a"))
    await engine.update_weights(POLICIES[1], 1)
    done = await engine.generate(request(prompt, session="b"))
    assert engine.counters()["prefilled_tokens"] == 2 * 59
    assert done.logprobs == pytest.approx(learner_logprobs(POLICIES[1], prompt + done.token_ids, 12), abs=1e-5)
    await engine.generate(request(prompt, session="c"))
    assert engine.counters()["prefilled_tokens"] == 2 * 59


async def test_a_rewritten_history_is_read_anew(make):
    engine, tokens = make(), stream(30)
    await engine.generate(request(tokens))
    rewritten = tokens[:10] + stream(20, seed=9)
    done = await engine.generate(request(rewritten))
    assert done.logprobs == pytest.approx(learner_logprobs(POLICIES[0], rewritten + done.token_ids, 12), abs=1e-5)
    assert engine.counters()["prefilled_tokens"] == 29 + 19


async def test_the_session_that_waited_longest_gives_up_its_row(make):
    engine = make(slots=2)
    prompts = {name: stream(20, seed=i) for i, name in enumerate("abc")}
    turns = {name: await engine.generate(request(prompts[name], session=name)) for name in "abc"}
    filled = engine.counters()["prefilled_tokens"]
    for name, new in (("b", 4), ("c", 4), ("a", 35)):
        tokens = prompts[name] + turns[name].token_ids + stream(4)
        done = await engine.generate(request(tokens, session=name))
        assert done.logprobs == pytest.approx(learner_logprobs(POLICIES[0], tokens + done.token_ids, 12), abs=1e-5)
        assert engine.counters()["prefilled_tokens"] - filled == new
        filled = engine.counters()["prefilled_tokens"]


async def test_another_session_never_reads_an_older_policy_s_keys(make):
    engine = make(slots=1)
    await engine.generate(request(session="a"))
    engine.release("a")
    await engine.update_weights(POLICIES[1], 1)
    done = await engine.generate(request(session="b"))
    assert done.logprobs == pytest.approx(learner_logprobs(POLICIES[1], PROMPT + done.token_ids, 12), abs=1e-5)


async def turn_with_an_update(engine, gate):
    """A turn of 12 tokens during which policy 1 comes."""
    reached, go = gate
    running = asyncio.ensure_future(engine.generate(request(max_tokens=12)))
    await asyncio.to_thread(reached.wait, 300)
    update = asyncio.ensure_future(engine.update_weights(POLICIES[1], 1))
    await asyncio.sleep(0)
    go.set()
    await update
    return await running


async def test_an_update_lands_inside_a_turn(make, gate):
    engine = make()
    done = await turn_with_an_update(engine, gate)
    assert done.versions == (0,) * 6 + (1,) * 6
    before = learner_logprobs(POLICIES[0], PROMPT + done.token_ids[:6], 6)
    assert done.logprobs[:6] == pytest.approx(before, abs=1e-5)
    after = learner_logprobs(POLICIES[1], PROMPT + done.token_ids, 6)
    assert done.logprobs[6:] != pytest.approx(after, abs=1e-3), "it still looks at keys of policy 0"


async def test_recomputing_makes_later_log_probs_the_new_policy_s(make, gate):
    engine = make(recompute=True)
    idle = await engine.generate(request(session="idle", max_tokens=2))
    done = await turn_with_an_update(engine, gate)
    old = done.versions.count(0)
    assert done.versions == (0,) * old + (1,) * (12 - old)
    assert 0 < old < 12
    before = learner_logprobs(POLICIES[0], PROMPT + done.token_ids[:old], old)
    after = learner_logprobs(POLICIES[1], PROMPT + done.token_ids, 12 - old)
    assert done.logprobs == pytest.approx((*before, *after), abs=1e-5)
    tokens = (*PROMPT, *idle.token_ids, *stream(3))
    turn = await engine.generate(request(tokens, session="idle"))
    assert turn.logprobs == pytest.approx(learner_logprobs(POLICIES[1], tokens + turn.token_ids, 12), abs=1e-5)


async def test_two_requests_of_one_session_take_turns(make, gate):
    """And others pass the one that waits."""
    reached, go = gate
    engine, order = make(), []

    async def turn(name, **options):
        done = await engine.generate(request(**options))
        order.append(name)
        return done.token_ids

    first = asyncio.ensure_future(turn("first", seed=1, max_tokens=90))
    await asyncio.to_thread(reached.wait, 300)
    second = asyncio.ensure_future(turn("second", seed=2))
    other = asyncio.ensure_future(turn("other", session="other", max_tokens=1))
    await asyncio.sleep(0)
    go.set()
    await asyncio.gather(first, second, other)
    assert order == ["other", "first", "second"]
    assert await second == (await make().generate(request(seed=2))).token_ids


async def test_a_cancelled_request_frees_its_row_while_it_decodes(make, gate):
    reached, go = gate
    engine = make(slots=1)
    running = asyncio.ensure_future(engine.generate(request(max_tokens=100)))
    await asyncio.to_thread(reached.wait, 300)
    running.cancel()
    await asyncio.sleep(0)
    go.set()
    await engine.generate(request(session="next", max_tokens=4))
    assert engine.counters()["generated_tokens"] == 6 + 4


async def test_a_failure_in_the_thread_reaches_everyone(make, monkeypatch):
    def decode(*_, **__):
        raise FloatingPointError("the chip caught fire")

    engine = make()
    monkeypatch.setattr(module, "decode", decode)
    answers = await asyncio.gather(
        *[engine.generate(request(session=str(i))) for i in range(5)], return_exceptions=True
    )
    for attempt in (engine.generate(request()), engine.update_weights(POLICIES[0], 1)):
        with pytest.raises(RunStopped) as caught:
            await attempt
        answers.append(caught.value)
    for error in answers:
        assert isinstance(error, RunStopped)
        assert "FloatingPointError: the chip caught fire" in str(error)
        assert isinstance(error.__cause__, FloatingPointError)


@pytest.mark.parametrize(
    "wrong", [request([0, 37]), request([-1, 3]), request(stop_ids=[37]), request(stop_ids=range(5))]
)
async def test_ids_outside_the_vocabulary_fail_alone(make, wrong):
    engine = make()
    with pytest.raises(RequestError):
        await engine.generate(wrong)
    assert (await engine.generate(request())).finish == "length"


async def test_weights_of_another_model_are_refused(make):
    engine = make()
    wider = {**POLICIES[1], "model": {**POLICIES[1]["model"], "norm": {"weight": jnp.ones(17)}}}
    with pytest.raises(RequestError, match=r"policy 1 .* model.norm.weight has shape \(17,\), not \(16,\)"):
        await engine.update_weights(wider, 1)
    with pytest.raises(RequestError, match=r"lm_head.weight has shape .*, not none"):
        await engine.update_weights({**POLICIES[1], "lm_head": {"weight": jnp.ones((37, 16))}}, 1)
    assert set((await engine.generate(request())).versions) == {0}


async def test_varied_lengths_compile_nothing_after_warm_up(make):
    engine = make()
    await engine.generate(request(stream(5), max_tokens=9))
    await engine.update_weights(POLICIES[1], 1)
    compiled = []
    count = lambda name, seconds, **_: compiled.append(name) if name == COMPILED else None  # noqa: E731
    jax.monitoring.register_event_duration_secs_listener(count)
    try:
        jax.jit(lambda x: x * 3.25)(1.0)
        assert len(compiled) == 1, "the counter counts"
        draw = random.Random(0)
        await asyncio.gather(*[engine.generate(_any_request(draw, i)) for i in range(60)])
        await engine.update_weights(jax.tree.map(np.asarray, POLICIES[0]), 2)
        await asyncio.gather(*[engine.generate(_any_request(draw, i)) for i in range(60)])
    finally:
        jax.monitoring.unregister_event_duration_listener(count)
    assert len(compiled) == 1


def _any_request(draw, number):
    return request(
        stream(draw.randrange(1, CONTEXT)),
        session=str(number),
        seed=draw.randrange(2**32),
        max_tokens=draw.randrange(1, 40),
        temperature=draw.choice([0.0, 0.5, 1.0]),
        top_k=draw.choice([0, 3]),
        top_p=draw.choice([1.0, 0.9]),
        stop_ids=draw.sample(range(TINY.vocab_size), draw.randrange(5)),
    )


async def test_prompts_that_arrive_together_are_read_before_any_of_them_decodes(make):
    engine = make(version=-1, slots=8, max_length=256, decode_steps=8)
    asked = [request(stream(60, i), session=str(i), max_tokens=8, stop_ids=()) for i in range(8)]
    waiting = [asyncio.create_task(engine.generate(one)) for one in asked]
    await asyncio.sleep(0)
    await engine.update_weights(POLICIES[0], 0)
    for done, one in zip(await asyncio.gather(*waiting), asked, strict=True):
        assert done.logprobs == pytest.approx(
            learner_logprobs(POLICIES[0], one.token_ids + done.token_ids, len(done.token_ids)), abs=1e-5
        )
    assert engine.counters()["dispatches"] == 2
