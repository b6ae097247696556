"""A GRPO step of the learner: against the peer's, packed against padded, adapters alone, and against the matmul rate.

The peer is google-tunix: `--peer` names a Python that has it. Rates are tokens, or floating-point operations, per
processor second, since wall time on a shared machine says little.
"""

import argparse
import json
import math
import subprocess
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from measure import report, seconds

from models.config import DecoderConfig
from models.pure import init_params, shapes
from schemas.algorithms import Loss
from schemas.lora import LoRA
from schemas.optimizer import Optimizer
from schemas.trajectory import Status, Trajectory
from trainer.batch import lay_out
from trainer.lora import freeze
from trainer.optimizer import make_optimizer
from trainer.packing import Layout, packed, padded
from trainer.step import init_state, make_rl_step

ROWS, PROMPT, RESPONSE = 16, 256, 128
PEER_AIM, PACKING_AIM = 1.3, 1.8
CONTEXT = 512
CACHED = 2
"""Rows of a pass whose activations a processor's cache holds; more rows take longer for each."""


def qwen3(layers: int, hidden: int) -> DecoderConfig:
    """The peer's shape: 4 heads, 2 of keys and values, a vocabulary of 256."""
    return DecoderConfig.from_hf({
        "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "hidden_act": "silu", "vocab_size": 256,
        "hidden_size": hidden, "intermediate_size": 3 * hidden, "num_hidden_layers": layers, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": hidden // 4, "max_position_embeddings": 1024, "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0, "tie_word_embeddings": True,
    })  # fmt: skip


SMALL, MIDDLE = qwen3(4, 128), qwen3(4, 256)
LARGE = DecoderConfig(
    vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
    num_key_value_heads=3, head_dim=64, max_position_embeddings=2048,
)  # fmt: skip


def trajectories(lengths: list[int], prompt: float, vocabulary: int) -> list[Trajectory]:
    """Streams of these lengths, of which the share `prompt` was not sampled."""
    draw = np.random.default_rng(0)
    return [_trajectory(draw, i, length, int(length * prompt), vocabulary) for i, length in enumerate(lengths)]


def _trajectory(draw: np.random.Generator, number: int, length: int, prompt: int, vocabulary: int) -> Trajectory:
    return Trajectory(
        id=str(number), run="benchmark", group=number // 8, sample=number % 8, attempt=0, task_id="t", task_digest="d",
        seed=0, worker="w", tokens=tuple(draw.integers(3, vocabulary, length).tolist()),
        mask=tuple(i >= prompt for i in range(length)), logprobs=tuple(-5.5 * (i >= prompt) for i in range(length)),
        version_starts=(prompt,), versions=(0,), segment_starts=(0,), turns=(), reward=0.0, components=(),
        status=Status.SUCCEEDED, detail="", generate_seconds=0.0, tool_seconds=0.0, queue_seconds=0.0, messages="[]",
        sampling="{}",
    )  # fmt: skip


class Ours:
    """The learner's step on a fixed batch; a call makes one update."""

    def __init__(
        self, config: DecoderConfig, batch: list[Trajectory], layout: Layout, lora: LoRA | None = None
    ) -> None:
        optimizer = make_optimizer(Optimizer(learning_rate=1e-4), 100)
        self.tokens = sum(len(t.tokens) for t in batch)
        self.parts = [p.batch for p in lay_out(batch, np.random.default_rng(1).normal(size=len(batch)), layout)]
        trained, frozen = freeze(lora, init_params(config, 0), 0)
        self._step = make_rl_step(config, Loss(), optimizer, frozen=frozen)
        self._state = init_state(trained, optimizer)

    def __call__(self) -> None:
        self._state, figures = self._step(self._state, self.parts)
        jax.block_until_ready(figures["loss"])

    def state_bytes(self) -> int:
        """Of what is trained and its optimizer's state; sums of gradients take as much as what is trained on top."""
        return sum(leaf.nbytes for leaf in jax.tree.leaves(self._state))


class Peer:
    """The peer's step in its own process and environment."""

    def __init__(self, python: str) -> None:
        script = str(Path(__file__).with_name("peer_learner.py"))
        command = [python, script, *map(str, (ROWS, PROMPT, RESPONSE))]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def step(self) -> dict[str, float]:
        """Make a step; its seconds."""
        sent, got = self._process.stdin, self._process.stdout
        assert sent is not None and got is not None
        print("step", file=sent, flush=True)
        line = got.readline()
        if not line:
            raise SystemExit(f"the peer's process ended with code {self._process.wait()}: see what it said above")
        return json.loads(line)

    def close(self) -> None:
        self._process.communicate()


def against_peer(python: str, rounds: int) -> list[dict[str, Any]]:
    """One line for each side, steps made in turn; ours alone where there is no peer.

    Ours with `rl.micro_batch` = 2, and as one pass, which is how the peer does it.
    """
    length = PROMPT + RESPONSE
    batch = trajectories([length] * ROWS, PROMPT / length, SMALL.vocab_size)
    ours = {
        "ours": Ours(SMALL, batch, padded(CACHED, length)),
        "ours in one pass": Ours(SMALL, batch, padded(ROWS, length)),
    }
    peer = Peer(python) if python else None
    taken: dict[str, list[float]] = {name: [] for name in (*ours, "peer")}
    for _ in range(rounds + 1):
        for name, step in ours.items():
            taken[name].append(seconds(step)[1])
        if peer is not None:
            taken["peer"].append(peer.step()["cpu"])
    if peer is not None:
        peer.close()
    middle = {side: float(np.median(cpu[1:])) for side, cpu in taken.items() if cpu}
    return [{"what": f"step, {side}", **_rate(ROWS * length, cpu)} for side, cpu in middle.items()]


def _rate(tokens: int, cpu: float) -> dict[str, float]:
    return {"tokens": tokens, "cpu_seconds": cpu, "tokens_per_cpu_second": tokens / cpu}


def long_tailed(count: int) -> list[int]:
    """Lengths of episodes: most are short, a few reach the limit."""
    return [int(n) for n in np.random.default_rng(0).lognormal(math.log(100), 0.8, count).clip(24, CONTEXT)]


def packing(rounds: int) -> list[dict[str, Any]]:
    """The same long-tailed batch padded and packed."""
    lengths = long_tailed(64)
    batch = trajectories(lengths, 0.5, SMALL.vocab_size)
    layouts = {"padded": padded(CACHED, CONTEXT), "packed": packed(CACHED, CONTEXT, CONTEXT, len(batch))}
    sides = {name: Ours(SMALL, batch, layout) for name, layout in layouts.items()}
    taken = _in_turn(sides, rounds)
    return [
        {
            "what": f"long tail, {name}",
            **_rate(sum(lengths), taken[name]),
            "filled": sum(lengths) / sum(p.tokens.size for p in side.parts),
        }
        for name, side in sides.items()
    ]


def _in_turn(calls: dict[str, Any], rounds: int) -> dict[str, float]:
    """Median processor seconds of each call, after one that compiles."""
    for call in calls.values():
        call()
    taken = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            taken[name].append(seconds(call)[1])
    return {name: float(np.median(cpu)) for name, cpu in taken.items()}


def adapters(rounds: int) -> list[dict[str, Any]]:
    """The same batch with all weights trained and with adapters alone, of rank 8 on every projection."""
    batch = trajectories([PROMPT + RESPONSE] * ROWS, 0.5, MIDDLE.vocab_size)
    layout = padded(CACHED, PROMPT + RESPONSE)
    sides = {"all weights": Ours(MIDDLE, batch, layout), "adapters": Ours(MIDDLE, batch, layout, LoRA(rank=8))}
    taken = _in_turn(sides, rounds)
    return [
        {"what": f"step of 3.2 M, {name}", **_rate(side.tokens, taken[name]), "state_mb": side.state_bytes() / 1e6}
        for name, side in sides.items()
    ]


def flops(config: DecoderConfig, rows: int, tokens: int) -> float:
    """Multiplications and additions of a step: 6 per weight and token, and those of causal attention."""
    weights = sum(math.prod(s) for name, s in shapes(config).items() if len(s) > 1 and "embed" not in name)
    weights += config.vocab_size * config.hidden_size
    attention = 6 * config.num_hidden_layers * config.num_attention_heads * config.head_dim * tokens
    return rows * tokens * (6.0 * weights + attention)


def matmul_rate() -> float:
    """Floating-point operations per processor second of a product of two float32 matrices of 2048 x 2048."""
    size = 2048
    one = jnp.asarray(np.random.default_rng(0).normal(size=(size, size)), jnp.float32)
    multiply = jax.jit(lambda a, b: a @ b)
    multiply(one, one).block_until_ready()
    return (
        2.0 * size**3 / float(np.median([seconds(lambda: multiply(one, one).block_until_ready())[1] for _ in range(7)]))
    )


def shares(rounds: int) -> list[dict[str, Any]]:
    """Operations per processor second at three sizes, and their share of the matmul rate."""
    out = []
    for name, config, rows, tokens in (("0.8 M", SMALL, 16, 384), ("3.2 M", MIDDLE, 16, 384), ("135 M", LARGE, 2, 256)):
        ours = Ours(config, trajectories([tokens] * rows, 0.5, config.vocab_size), padded(CACHED, tokens))
        rate = matmul_rate()
        cpu = _in_turn({"step": ours}, rounds)["step"]
        achieved = flops(config, rows, tokens) / cpu
        out.append({
            "what": f"step of {name}", **_rate(ours.tokens, cpu), "gflops": achieved / 1e9, "matmul_gflops": rate / 1e9,
            "share": achieved / rate,
        })  # fmt: skip
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer", default="", help="a Python that has google-tunix")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", choices=("peer", "packing", "adapters", "shares"), help="one comparison")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    args = parser.parse_args()
    lines, meets = [], {}
    if args.only in (None, "peer"):
        found = against_peer(args.peer, args.rounds)
        lines += found
        if args.peer:
            ratio = found[0]["tokens_per_cpu_second"] / found[-1]["tokens_per_cpu_second"]
            meets[f"step at least {PEER_AIM} times the peer's rate ({ratio:.2f})"] = ratio >= PEER_AIM
        else:
            print("no --peer given: the comparison with the peer is left out")
    if args.only in (None, "packing"):
        found = packing(args.rounds)
        lines += found
        ratio = found[1]["tokens_per_cpu_second"] / found[0]["tokens_per_cpu_second"]
        meets[f"packed at least {PACKING_AIM} times padded ({ratio:.2f})"] = ratio >= PACKING_AIM
    if args.only in (None, "adapters"):
        lines += adapters(max(1, args.rounds // 2))
    if args.only in (None, "shares"):
        lines += shares(max(1, args.rounds // 3))
    report(lines, meets, as_json=args.json)


if __name__ == "__main__":
    main()
