"""A side of a benchmark in a process and an environment of its own: one line of JSON asks, one answers.

Both ends are here; this file needs nothing but Python, since other environments import it.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from measure import seconds


class Side:
    """The asking end: `script`, beside this file, run by the Python named `python`."""

    def __init__(self, python: str, script: str, *arguments: Any) -> None:
        path = Path(__file__).with_name(script)
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        self._script = script
        self._process = subprocess.Popen(
            [python, str(path), *map(str, arguments)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
        )  # fmt: skip

    def ask(self, **work: Any) -> dict[str, float]:
        """Have the work done; its wall and processor seconds, `wall` and `cpu`."""
        sent, got = self._process.stdin, self._process.stdout
        assert sent is not None and got is not None
        try:
            print(json.dumps(work), file=sent, flush=True)
            line = got.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise SystemExit(f"{self._script} ended with code {self._process.wait()}: see what it said above")
        return json.loads(line)

    def close(self) -> None:
        self._process.communicate()


def answer(start: Callable[..., Callable[..., None]], *arguments: Any) -> None:
    """The answering end: start, then do what each line asks for. What libraries print goes to standard error."""
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)
        work = start(*arguments)
        for line in sys.stdin:
            asked = json.loads(line)
            wall, cpu = seconds(lambda asked=asked: work(**asked))
            print(json.dumps({"wall": wall, "cpu": cpu}), file=answers, flush=True)
