"""`headrace validate`: check a configuration and everything it names, down to every demonstration and gold answer.

Nothing is written.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict

from models.spans import Span
from schemas.errors import RequestError
from storage.objects import write_pause
from tasks import traffic
from tasks.environment import check_environment
from tasks.lessons_proof import Taught, measure_lessons
from tasks.proof import Proof, prove
from tasks.record import read_run
from tasks.request import load
from tasks.start import check_start


def main(args: argparse.Namespace) -> None:
    if args.tasks is not None and args.tasks < 0:
        raise RequestError(f"--tasks {args.tasks}: give 0 or more")
    request = load(args.config, args.overrides, root=args.root)
    check_start(request)
    read_run(request.store, request.run)
    cast = check_environment(request)
    taught = measure_lessons(request, cast)
    proof = prove(request, args.tasks)
    pause = write_pause(request.store)
    cost = traffic.estimate(request.config, traffic.parameters(request), pause=pause) if pause else None
    if args.json:
        said = {"run": request.run, "store": request.store.url, "taught": [asdict(t) for t in taught]}
        return print(json.dumps(said | asdict(proof), indent=2))
    print(f"{args.config} is valid: run {request.run} in {request.store.url}")
    print("\n".join([*map(_learned, taught), *_lines(proof), *_examples(taught, proof)]))
    if cost is not None:
        print(traffic.sentence(cost))


def _learned(taught: Taught) -> str:
    """A line for a warm-up's data."""
    lacking, other = ", ".join(f"`{name}`" for name in taught.unknown_tools), taught.opened_otherwise
    return (
        f"  {taught.setting} ({taught.file}): {taught.rows} {taught.what} of at most {taught.longest} tokens "
        f"(max_length {taught.max_length}), {taught.trained / taught.tokens:.0%} of all tokens are trained"
        + (f"; they call {lacking}, which the environment does not offer" if lacking else "")
        + (f"; {other} open otherwise than an episode with their question (system prompt or tools)" if other else "")
    )


def _lines(proof: Proof) -> list[str]:
    """A line for each task file."""
    lines = []
    for f in proof.files:
        unknown = f", {f.unknown} have no known gold answer" if f.unknown else ""
        lines.append(f"  {f.setting} ({f.file}): {f.tasks} tasks, {f.gold} gold answers solve theirs{unknown}")
    return lines


def _examples(taught: Sequence[Taught], proof: Proof) -> list[str]:
    """The first row of every warm-up, and a gold episode."""
    shown = [(f"The first of the {t.what} of {t.setting}", t.example) for t in taught]
    if proof.example is not None:
        shown.append((f"The gold episode of {proof.example.task}", proof.example.spans))
    return [line for title, spans in shown for line in _example(title, spans)]


def _example(title: str, spans: Sequence[Span]) -> list[str]:
    """Spans as quoted text, so that white space shows."""
    kinds = {True: "trained", False: "given"}
    texts = [json.dumps(s.text, ensure_ascii=False)[1:-1] for s in spans]
    return [
        f"{title}, in tokens that are given and tokens that the loss trains:",
        *(f"  {kinds[s.trained]:<8}{s.tokens:>5}  {text}" for s, text in zip(spans, texts, strict=True)),
    ]
