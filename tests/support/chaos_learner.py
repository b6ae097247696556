"""The real learner process, in reach of a test: its phase can be read at any moment, and it obeys orders.

In the folder $CHAOS_FOLDER `<pid>.phase` holds the phase, `allowed` the number of steps that may be made by now, and
`order` a signal and the phase at whose beginning the learner sends it to itself. Whoever obeys an order moves it to
`obeyed-<pid>`, so that one learner does.
"""

import argparse
import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

from storage.process import run_process
from support.phases import RECOVERING, watch
from trainer import learner_process
from trainer.jax_updater import JaxUpdater
from trainer.staleness import StalenessPolicy

FOLDER = Path(os.environ.get("CHAOS_FOLDER", "."))


class Obedient:
    """Notes each phase where a test can read it even if this process is killed, and obeys a standing order."""

    def __init__(self) -> None:
        self._file = os.open(FOLDER / f"{os.getpid()}.phase", os.O_CREAT | os.O_WRONLY)

    def __call__(self, phase: str) -> None:
        os.pwrite(self._file, phase.encode().ljust(64), 0)
        with suppress(FileNotFoundError):
            how, wanted = (FOLDER / "order").read_text().split(" ", 1)
            if wanted == phase:
                os.rename(FOLDER / "order", FOLDER / f"obeyed-{os.getpid()}")
                os.kill(os.getpid(), signal.Signals[how])


def hold() -> None:
    """Select nothing while as many steps are made as are allowed."""
    select = StalenessPolicy.select

    def selected(self: StalenessPolicy, progress: Any, found: Any) -> Any:
        allowed = int((FOLDER / "allowed").read_text())
        return select(self, progress, found) if progress.step < allowed else None

    StalenessPolicy.select = selected  # type: ignore[method-assign]


def main(args: argparse.Namespace) -> int:
    enter = Obedient()
    enter(RECOVERING)
    watch(setattr, JaxUpdater, enter)
    hold()
    return learner_process.main(args)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", required=True)
    parser.add_argument("--base", required=True)
    run_process(main, parser)
