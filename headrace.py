"""The command `headrace`: checks that our rooms are ours, then hands over to `flows.cli`.

The rooms are top-level packages, so a user's own `tasks.py` first on the path would take the place of ours; that is
found here, before anything is imported from them.
"""

import importlib.util
import sys
from pathlib import Path

ROOMS = ("schemas", "storage", "models", "rollout", "trainer", "tasks", "flows")


def shadow(home: Path) -> str:
    """One sentence about a room that resolves outside `home`, or an empty string."""
    for room in ROOMS:
        spec = importlib.util.find_spec(room)
        origin = Path(spec.origin).resolve() if spec and spec.origin else None
        if origin != home / room / "__init__.py":
            where = origin or "nothing that can be imported"
            return (
                f"the package `{room}` of headrace is shadowed by {where}: rename that file or folder, "
                f"or take its folder off PYTHONPATH and start from another directory"
            )
    return ""


def main() -> None:
    """Run the command line and exit with its code."""
    sentence = shadow(Path(__file__).resolve().parent)
    if sentence:
        print(f"headrace: {sentence}", file=sys.stderr)
        raise SystemExit(2)
    from flows.cli import main as run

    raise SystemExit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
