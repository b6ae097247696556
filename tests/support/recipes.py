"""A recipe of `examples/` run whole, by the command, in a store of its own: what it learned, and whether it adds up."""

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

COMMAND = Path(sys.executable).with_name("headrace")
EXAMPLES = Path(__file__).parents[2] / "examples"
WARM_UP, PROMOTED = "warm-up", "candidate"


@dataclass(frozen=True)
class Learned:
    """Success on the held-out tasks at temperature 1, with its 95 % interval, and what the audit says of the run."""

    success: dict[str, float]
    low: dict[str, float]
    high: dict[str, float]
    promoted: bool
    sound: bool


def run(recipe: str, root: Path) -> Learned:
    """Run `examples/<recipe>/<recipe>.toml` to its end, and read the store."""
    said = headrace("run", str(EXAMPLES / recipe / f"{recipe}.toml"), root=root)
    found = json.loads(headrace("status", recipe, "--json", root=root))["evaluations"]
    held_out = {e["name"]: e for e in found if e["setting"] == "evaluation.tasks" and e["temperature"] == 1.0}
    success, low, high = ({n: e[k] for n, e in held_out.items()} for k in ("success", "low", "high"))
    audit = json.loads(headrace("audit", "verify", recipe, "--json", root=root))
    return Learned(success, low, high, f"  promoted: {recipe}@" in said, audit["ok"])


def headrace(*words: str, root: Path) -> str:
    """What a command says; it must succeed."""
    done = subprocess.run([str(COMMAND), *words, "--root", str(root)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
