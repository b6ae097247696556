"""The view on a terminal: a table that is kept up to date below the lines that are worth keeping."""

import threading
import time
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.table import Table

from flows.lines import figure, line
from tasks.children import Event

_ROUTINE = frozenset({"step", "warm_up", "evaluation", "worker"})


class LiveView:
    """A sink that draws; use it as a context manager."""

    def __init__(self, title: str, console: Console | None = None) -> None:
        self._title, self._console = title, console or Console()
        self._started, self._stage = time.monotonic(), "starting"
        self._latest: dict[str, Event] = {}
        self._lock = threading.Lock()
        self._live = Live(get_renderable=self.table, console=self._console, refresh_per_second=4, transient=True)

    def __enter__(self) -> "LiveView":
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def __call__(self, source: str, event: Event) -> None:
        with self._lock:
            if event["event"] in _ROUTINE:
                self._latest[source] = event
            if event["event"] == "worker_gone":
                self._latest.pop(source, None)
            if event["event"] == "stage":
                self._stage = str(event.get("name"))
                self._latest = {k: v for k, v in self._latest.items() if v["event"] in ("step", "worker")}
        text = line(source, event)
        if text and event["event"] not in _ROUTINE:
            self._console.print(text, markup=False, highlight=False)

    def table(self) -> Table:
        """The state as a table of one line per process."""
        seconds = int(time.monotonic() - self._started)
        table = Table(title=f"{self._title} · {self._stage} · {seconds // 60}:{seconds % 60:02d}", title_justify="left")
        for column in ("", "step", "reward", "success", "staleness", "idle", "tokens/s"):
            table.add_column(column, justify="left" if not column else "right")
        with self._lock:
            for source, event in sorted(self._latest.items()):
                table.add_row(source, *cells(event))
        return table


def cells(event: Event) -> tuple[str, str, str, str, str, str]:
    """Step, reward, success, staleness, idle share, tokens per second of a routine event; dashes for what it lacks."""
    step = event.get("step", event.get("done", event.get("trajectories")))
    whole = event.get("steps", event.get("n"))
    idle = event.get("trainer_idle_ratio", event.get("rollouter_idle_ratio"))
    staleness = [figure(event.get(key), how) for key, how in (("staleness_mean", ".2f"), ("staleness_max", "g"))]
    return (
        figure(step, "g") + (f"/{figure(whole, 'g')}" if whole else ""),
        figure(event.get("reward"), ".3f"),
        figure(event.get("success"), ".1%"),
        " ≤ ".join(staleness) if "staleness_mean" in event else "–",
        figure(idle, ".0%"),
        figure(event.get("tokens_per_second"), ",.0f"),
    )
