"""Tokens that engines sample: ours, bare jitted loops as the limit, transformers, vLLM and the peer's sampler.

Side by side in one run, at several numbers of requests in flight and with mixed lengths; then episodes of three turns
with a tool. `--transformers`, `--vllm` and `--peer` name the Pythons that have each; what has none is left out.
"""

import argparse
import asyncio
import os
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from learner import LARGE, MIDDLE, SMALL
from measure import report, seconds
from side import Side

from models.cache import KVCache, empty_cache
from models.config import DecoderConfig
from models.logprobs import of_tokens
from models.pure import Params, init_params, module
from models.weights import to_files
from rollout.engine import Request, Sampling
from rollout.jax_engine import JaxEngine
from rollout.jax_sampling import gumbel

CONTEXT, LONGEST = 256, 128
"""Tokens of a stream, and of those at most sampled."""
WAVES = 2
"""Requests for each place, so that short ones make room for others."""
LIMIT_AIM, AGENTIC_AIM = 1.5, 20
PEER_ROLLOUTS = 135.0
"""Tokens per processor second of the peer's whole rollouts, recorded on another day: see README.md."""
MODELS = {"0.8m": SMALL, "3.2m": MIDDLE, "135m": LARGE}
OTHERS = {"transformers": "transformers_engine.py", "vllm": "vllm_cpu_engine.py", "peer": "peer_engine.py"}
END, EPISODES, TURNS, TURN = 2, (4, 4), 3, 16
"""The token that ends a turn, groups and episodes of each, turns of an episode, tokens of a turn at most."""
WINDOW, RESPONSE = 256, 128
"""The peer's: what it reads of a stream, and the rest of its cache."""
TOOL = 0, 200
"""Milliseconds that a tool takes."""


class Work(NamedTuple):
    """Requests: what each starts with, and how many tokens it is to sample."""

    prompts: list[list[int]]
    budgets: list[int]


Tool = Callable[[int], Awaitable[list[int]]]
"""What answers the turn of a number, as tokens."""
Figures = dict[str, dict[str, float]]
"""By side: the tokens, and how many there are to a processor second and to a second."""


def mixed(flight: int, vocabulary: int) -> Work:
    """Requests for `flight` places: 16 to 127 tokens that sample 16 to 128."""
    draw = np.random.default_rng(flight)
    count = WAVES * flight
    prompts = [draw.integers(3, vocabulary, n).tolist() for n in draw.integers(16, CONTEXT - LONGEST, count)]
    return Work(prompts, draw.integers(16, LONGEST + 1, count).tolist())


class Ours:
    """The JAX engine with `slots` places, from construction to `close`."""

    def __init__(self, config: DecoderConfig, params: Params, slots: int, context: int = CONTEXT) -> None:
        self._loop, self._params, self._calls = asyncio.new_event_loop(), params, 0
        self._engine = JaxEngine(config, params, version=0, slots=slots, max_length=context)

    def __call__(self, work: Work) -> None:
        """Sample every request to its end."""
        self._calls += 1
        self._run([self._request(i, *asked) for i, asked in enumerate(zip(*work, strict=True))])

    def play(self, prompts: list[list[int]], tool: Tool) -> int:
        """An episode for each prompt, all at once, on weights new to the engine; how many tokens it sampled."""
        self._calls += 1
        before = self._engine.counters()["generated_tokens"]
        self._loop.run_until_complete(self._engine.update_weights(self._params, self._calls))
        self._run([self._episode(i, prompt, tool) for i, prompt in enumerate(prompts)])
        return int(self._engine.counters()["generated_tokens"] - before)

    def close(self) -> None:
        self._loop.run_until_complete(self._engine.close())
        self._loop.close()

    def _run(self, work: list[Any]) -> None:
        async def all_of_it() -> None:
            await asyncio.gather(*work)

        self._loop.run_until_complete(all_of_it())

    async def _request(self, number: int, prompt: list[int], budget: int) -> None:
        await self._sampled(number, prompt, Sampling(budget, temperature=1.0, stop_ids=()))
        self._engine.release(self._session(number))

    async def _episode(self, number: int, prompt: list[int], tool: Tool) -> None:
        stream = list(prompt)
        for turn in range(TURNS):
            stream += await self._sampled(number, stream, Sampling(TURN, temperature=1.0, stop_ids=(END,)))
            stream += await tool(turn)
        self._engine.release(self._session(number))

    async def _sampled(self, number: int, stream: list[int], sampling: Sampling) -> tuple[int, ...]:
        seed = self._calls * 1_000_000 + number * 1000 + len(stream)
        return (await self._engine.generate(Request(self._session(number), tuple(stream), sampling, seed))).token_ids

    def _session(self, number: int) -> str:
        return f"{self._calls}/{number}"


def bare(config: DecoderConfig, params: Params, rows: int) -> Callable[[], Any]:
    """The limit of decoding: one jitted loop that samples LONGEST tokens for `rows` rows, all from start to end, after
    prompts of half the context that nobody reads. The sampling and the log-probs are the engine's."""
    lengths, params = jnp.full(rows, CONTEXT - LONGEST, jnp.int32), jax.tree.map(jnp.asarray, params)
    past, token = empty_cache(config, rows, CONTEXT - LONGEST), jnp.zeros(rows, jnp.int32)
    return lambda: jax.block_until_ready(_decoded(config, params, past, lengths, token, jnp.int32(LONGEST)))


def batches(config: DecoderConfig, params: Params, work: Work, flight: int) -> Callable[[], Any]:
    """The limit without an engine: the requests in batches of `flight`, whose prompts are read at once, padded to the
    longest that there may be, and which sample in the bare loop until the longest request of the batch is done."""
    params, tokens = jax.tree.map(jnp.asarray, params), np.zeros((len(work.prompts), CONTEXT - LONGEST), np.int32)
    for row, prompt in zip(tokens, work.prompts, strict=True):
        row[: len(prompt)] = prompt
    lengths, budgets = np.array([len(p) for p in work.prompts], np.int32), np.array(work.budgets, np.int32)

    def every() -> None:
        for first in range(0, len(lengths), flight):
            one = slice(first, first + flight)
            past = _read(config, params, tokens[one])
            last = tokens[one][np.arange(flight), lengths[one] - 1]
            jax.block_until_ready(_decoded(config, params, past, lengths[one] - 1, last, budgets[one].max()))

    return every


@partial(jax.jit, static_argnames="config")
def _read(config: DecoderConfig, params: Params, tokens: jax.Array) -> KVCache:
    none = empty_cache(config, len(tokens), 0)
    return module(config, params).read(tokens, none, jnp.zeros(len(tokens), jnp.int32))[1]


@partial(jax.jit, static_argnames="config")
def _decoded(
    config: DecoderConfig, params: Params, past: KVCache, lengths: jax.Array, token: jax.Array, steps: jax.Array
) -> Any:
    """`steps` tokens, at most LONGEST, and their log-probs for every row."""
    decoder, rows = module(config, params), len(token)
    seeds = jnp.arange(rows, dtype=jnp.uint32)

    def step(number: jax.Array, state: Any) -> Any:
        recent, token, tokens, logprobs = state
        logits, recent = decoder.step(token, past, lengths, recent, number)
        noisy = logits + gumbel(seeds, lengths + number, logits.shape[-1])
        token = jnp.argmax(noisy, axis=-1).astype(jnp.int32)
        return recent, token, tokens.at[number].set(token), logprobs.at[number].set(of_tokens(logits, token))

    none = jnp.zeros((LONGEST, rows), jnp.int32), jnp.zeros((LONGEST, rows), jnp.float32)
    return jax.lax.fori_loop(0, steps, step, (empty_cache(config, rows, LONGEST), token, *none))[2:]


def in_flight(config: DecoderConfig, params: Params, flight: int, others: dict[str, Side], rounds: int) -> Figures:
    """Every side on the same requests, `flight` at a time, in turn; by name the tokens and the median seconds."""
    work = mixed(flight, config.vocab_size)
    ours, limit = Ours(config, params, flight), bare(config, params, flight)
    static = batches(config, params, work, flight)
    sides: dict[str, Callable[[], tuple[float, float]]] = {
        "bare loop": lambda: seconds(limit),
        "bare batches": lambda: seconds(static),
        "ours": lambda: seconds(lambda: ours(work)),
    }
    for name, side in others.items():
        sides[name] = lambda side=side: _seconds(side.ask(**work._asdict(), flight=flight))
    taken = {name: [] for name in sides}
    for _ in range(rounds + 1):
        for name, side in sides.items():
            taken[name].append(side())
    ours.close()
    tokens = {name: flight * LONGEST if name == "bare loop" else sum(work.budgets) for name in sides}
    return {name: _rates(tokens[name], seen[1:]) for name, seen in taken.items()}


def _seconds(found: dict[str, float]) -> tuple[float, float]:
    return found["wall"], found["cpu"]


def _rates(tokens: int, taken: list[tuple[float, float]]) -> dict[str, float]:
    wall, cpu = np.median(np.array(taken), axis=0).tolist()
    return {"tokens": tokens, "per_cpu_second": tokens / cpu, "per_second": tokens / wall}


def episodes() -> list[list[int]]:
    """What each episode starts with, as bytes: groups share it."""
    return [list(f"U:task 0-{group}\nA:".encode()) for group in range(EPISODES[0]) for _ in range(EPISODES[1])]


def agentic(config: DecoderConfig, params: Params, seconds_of_tool: float, peer: Side | None, rounds: int) -> Figures:
    """The episodes of a training step: ours, and the peer's sampler called as its rollouts call it, turn by turn."""

    async def tool(turn: int) -> list[int]:
        await asyncio.sleep(seconds_of_tool)
        return list(f"\nU:ok {turn + 1}\nA:".encode())

    ours = Ours(config, params, EPISODES[0] * EPISODES[1], WINDOW + RESPONSE)
    taken: dict[str, list[tuple[float, float]]] = {"ours": [], "peer": []}
    counts: list[int] = []
    for _ in range(rounds + 1):
        taken["ours"].append(seconds(lambda: counts.append(ours.play(episodes(), tool))))
        if peer is not None:
            turns = [[episode] * TURNS for episode in episodes()]
            calls = Work([t for e in turns for t in e], [TURN] * TURNS * len(turns))
            taken["peer"].append(_seconds(peer.ask(**calls._asdict(), flight=1, window=WINDOW)))
    ours.close()
    nominal = TURNS * TURN * len(episodes())
    found = {"ours": _rates(round(float(np.mean(counts[1:]))), taken["ours"][1:])}
    return found | ({"peer": _rates(nominal, taken["peer"][1:])} if peer is not None else {})


def start_others(pythons: dict[str, str], config: DecoderConfig, params: Params, most: int, stack: ExitStack) -> dict:
    """The other sides for which there is a Python, on the same weights where they read any."""
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    for name, content in to_files(config, params).items():
        (folder / name).write_bytes(content)
    others = {n: Side(python, OTHERS[n], folder, most, CONTEXT) for n, python in pythons.items() if python}
    for side in others.values():
        stack.callback(side.close)
    return others


def main() -> None:
    args = arguments()
    if args.peer and "135m" in args.size:
        raise SystemExit("the peer's side samples bytes, not 49,152 tokens: leave out --peer with --size 135m")
    pythons = {name: getattr(args, name) for name in OTHERS}
    for name in (n for n, python in pythons.items() if not python):
        print(f"no --{name} given: {name} is left out")
    lines: list[dict[str, Any]] = []
    meets: dict[str, bool] = {}
    for size in args.size:
        config = MODELS[size]
        params = init_params(config, 0)
        with ExitStack() as stack:
            others = start_others(pythons, config, params, max(args.flight), stack)
            for flight in args.flight:
                found = in_flight(config, params, flight, others, args.rounds)
                lines += _lines(f"{size}, {flight} in flight", found)
                if flight == 32:
                    meets |= _compared(size, found)
            for milliseconds in TOOL if size == "0.8m" else ():
                found = agentic(config, params, milliseconds / 1000, others.get("peer"), args.rounds)
                lines += _lines(f"episodes, tool {milliseconds} ms", found)
                meets |= _ahead(milliseconds, found)
    report(lines, meets, as_json=args.json)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in OTHERS:
        parser.add_argument(f"--{name}", default="", metavar="PYTHON", help=f"a Python for {name}")
    parser.add_argument(
        "--size", nargs="+", choices=tuple(MODELS), default=["0.8m", "3.2m"], help="models by parameters"
    )
    parser.add_argument("--flight", nargs="+", type=int, default=[1, 8, 32, 128], help="requests in flight")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    return parser.parse_args()


def _lines(what: str, found: dict[str, dict[str, float]]) -> list[dict[str, Any]]:
    """A row for each side, said as soon as it is there."""
    load = round(os.getloadavg()[0], 1)
    for side, figures in found.items():
        print(f"{what}: {side}: {figures['per_cpu_second']:.0f} tokens per processor second", flush=True)
    return [{"what": what, "side": side, **figures, "load": load} for side, figures in found.items()]


def _ahead(milliseconds: int, found: Figures) -> dict[str, bool]:
    """What is aimed at with episodes: far ahead of the peer's rollouts."""
    ratio = found["ours"]["per_cpu_second"] / PEER_ROLLOUTS
    aim = f"episodes, tool {milliseconds} ms: {AGENTIC_AIM} times the peer's recorded {PEER_ROLLOUTS:g} ({ratio:.1f})"
    meets = {aim: ratio >= AGENTIC_AIM}
    if "peer" in found:
        ratio = found["ours"]["per_cpu_second"] / found["peer"]["per_cpu_second"]
        meets[f"episodes, tool {milliseconds} ms: ahead of the peer's sampler alone ({ratio:.1f} times)"] = ratio > 1
    return meets


def _compared(size: str, found: dict[str, dict[str, float]]) -> dict[str, bool]:
    """What is aimed at with 32 requests: close to the limit, and ahead of every other."""
    rate = {name: figures["per_cpu_second"] for name, figures in found.items()}
    short = rate["bare loop"] / rate["ours"]
    meets = {f"{size}, 32 in flight: within {LIMIT_AIM} times the bare loop ({short:.2f})": short <= LIMIT_AIM}
    same = rate["bare batches"] / rate["ours"]
    meets[f"{size}, 32 in flight: within {LIMIT_AIM} times bare batches of these requests ({same:.2f})"] = (
        same <= LIMIT_AIM
    )
    for name in OTHERS.keys() & rate.keys():
        ahead = rate["ours"] / rate[name]
        meets[f"{size}, 32 in flight: ahead of {name} ({ahead:.2f} times)"] = ahead > 1
    return meets


if __name__ == "__main__":
    main()
