"""`headrace validate`: check a configuration and everything it names, down to every gold answer; nothing is written."""

import argparse
import json
from dataclasses import asdict

from schemas.errors import RequestError
from storage.objects import write_pause
from tasks import traffic
from tasks.environment import check_environment
from tasks.proof import Example, Proof, prove
from tasks.record import read_run
from tasks.request import load
from tasks.start import check_start


def main(args: argparse.Namespace) -> None:
    if args.tasks is not None and args.tasks < 0:
        raise RequestError(f"--tasks {args.tasks}: give 0 or more")
    request = load(args.config, args.overrides, root=args.root)
    check_start(request)
    read_run(request.store, request.run)
    check_environment(request)
    proof = prove(request, args.tasks)
    pause = write_pause(request.store)
    cost = traffic.estimate(request.config, traffic.parameters(request), pause=pause) if pause else None
    if args.json:
        return print(json.dumps({"run": request.run, "store": request.store.url, **asdict(proof)}, indent=2))
    print(f"{args.config} is valid: run {request.run} in {request.store.url}")
    print("\n".join(_lines(proof)))
    if cost is not None:
        print(traffic.sentence(cost))


def _lines(proof: Proof) -> list[str]:
    """A line for each task file, then the example."""
    lines = []
    for f in proof.files:
        unknown = f", {f.unknown} have no known gold answer" if f.unknown else ""
        lines.append(f"  {f.setting} ({f.file}): {f.tasks} tasks, {f.gold} gold answers solve theirs{unknown}")
    return [*lines, *(_example(proof.example) if proof.example else [])]


def _example(example: Example) -> list[str]:
    """Spans as quoted text, so that white space shows."""
    head = f"The gold episode of {example.task}, in tokens that are given and tokens that the loss trains:"
    kinds = {True: "trained", False: "given"}
    texts = [json.dumps(s.text, ensure_ascii=False)[1:-1] for s in example.spans]
    return [
        head,
        *(f"  {kinds[s.trained]:<8}{s.tokens:>5}  {text}" for s, text in zip(example.spans, texts, strict=True)),
    ]
