"""What a run says, as plain lines: one per step at most once a second, and one for whatever is not routine."""

import sys
import time
from collections.abc import Callable, Mapping
from typing import TextIO

from tasks.children import Event


class Lines:
    """Prints events to a stream; a sink of a session."""

    def __init__(self, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream, self._pace = stream or sys.stdout, Pace(_OFTEN, clock)

    def __call__(self, source: str, event: Event) -> None:
        text = line(source, event)
        if text and self._pace.due(source, event):
            print(text, file=self._stream, flush=True)


class Pace:
    """Says which events are worth a line by now. `pauses`: least seconds between two of a source, for routine kinds."""

    def __init__(self, pauses: Mapping[str, float], clock: Callable[[], float]) -> None:
        self._pauses, self._clock = pauses, clock
        self._last: dict[str, float] = {}

    def due(self, source: str, event: Event) -> bool:
        """Whether it is time for it; whatever is not routine and the last of a series always are."""
        pause = self._pauses.get(event["event"])
        if pause is None:
            return True
        last = any(part in event and event[part] == event.get(whole) for part, whole in _PARTS)
        now = self._clock()
        if not last and now - self._last.get(source, -pause) < pause:
            return False
        self._last[source] = now
        return True


_PARTS = (("step", "steps"), ("done", "n"))
_OFTEN = {"step": 1.0, "warm_up": 3.0, "evaluation": 5.0}


def line(source: str, event: Event) -> str:
    """The event in words; empty for what is not worth a line."""
    maker = _WORDS.get(event["event"])
    return f"{source}: {maker(event)}" if maker else ""


def _step(e: Event) -> str:
    text = f"step {e.get('step')}/{e.get('steps', '?')}  reward {_number(e, 'reward')}  success {_share(e, 'success')}"
    text += f"  staleness {_number(e, 'staleness_mean')} (max {_number(e, 'staleness_max', 'g')})"
    return (
        text + f"  learner idle {_share(e, 'trainer_idle_ratio')}  {_number(e, 'tokens_per_second', ',.0f')} tokens/s"
    )


def _warm_up(e: Event) -> str:
    text = f"step {e.get('step')}/{e.get('steps', '?')}  loss {_number(e, 'loss')}"
    if "margin" in e:
        text += f"  accuracy {_share(e, 'accuracy')}  margin {_number(e, 'margin')}"
    return text + f"  {_number(e, 'tokens_per_second', ',.0f')} tokens/s"


def _evaluation(e: Event) -> str:
    played = f"{e.get('done')}/{e.get('n')} problems"
    return f"{played}  success {_share(e, 'success')}" if e.get("done") else played


def _stage(e: Event) -> str:
    return f"started (key {e.get('key')})"


def _skipped(e: Event) -> str:
    return f"finished before (key {e.get('key')}), skipped"


def _message(e: Event) -> str:
    """A message, and where a bug of ours speaks, what its author needs."""
    return "\n".join(str(e[part]) for part in ("message", "traceback") if part in e)


def _recovered(e: Event) -> str:
    where = f"checkpoint {e['checkpoint']}" if e.get("checkpoint") is not None else "no checkpoint yet"
    return f"at step {e.get('step')} ({where}, {e.get('replayed', 0)} ledger records replayed)"


_WORDS: dict[str, Callable[[Event], str]] = {
    "step": _step,
    "warm_up": _warm_up,
    "evaluation": _evaluation,
    "stage": _stage,
    "skipped": _skipped,
    "restart": _message,
    "error": _message,
    "log": _message,
    "recovered": _recovered,
}


def figure(value: object, how: str) -> str:
    """A number as the format says; a dash for what is none."""
    return format(value, how) if isinstance(value, int | float) else "–"


def _number(e: Event, key: str, how: str = ".3f") -> str:
    return figure(e.get(key), how)


def _share(e: Event, key: str) -> str:
    return figure(e.get(key), ".1%")
