"""Whatever a child prints: memory is bounded, nothing waits for ever, events arrive, and what was cut is told."""

import time
from collections.abc import Callable

import psutil
import pytest
from support.projects import FAKES

from tasks.children import Command, Event, Outcome, run_child
from tasks.output import EVENT_BYTES, LINES, TEXT
from tasks.supervise import Restarts, keep_running


@pytest.fixture(autouse=True)
def path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(FAKES), prepend=":")


def child(kind: str, stop: Callable[[list[Event]], bool] = lambda _: False) -> tuple[Outcome, list[Event]]:
    """Run a rude child to its end; what it said."""
    events: list[Event] = []
    outcome = run_child(
        Command("rude", "rude_processes", (kind,)), events.append, stop=lambda: stop(events), silence=60
    )
    return outcome, events


def messages(events: list[Event]) -> list[str]:
    return [str(e["message"]) for e in events if e["event"] == "log"]


def kinds(events: list[Event]) -> list[str]:
    return [e["event"] for e in events if e["event"] != "log"]


def _memory() -> int:
    """Bytes of this process now: its peak may be of an earlier test."""
    return psutil.Process().memory_info().rss


def test_a_flood_of_lines_is_cut_and_its_events_arrive() -> None:
    sizes = [_memory()]
    outcome, events = child("flood", lambda _: bool(sizes.append(_memory())))
    grown = max(*sizes, _memory()) - sizes[0]
    assert len(sizes) > 2, "it was looked at in between"
    assert outcome.code == 0 and kinds(events) == ["middle", "end"]
    assert grown < 100 << 20, f"{grown:,} bytes for 200 MB that were said"
    said = messages(events)
    shown = [m for m in said if m.startswith("all work and no play")]
    left_out = sum(int(m.split()[1].replace(",", "")) for m in said if "were left out" in m)
    assert LINES <= len(shown) < 10 * LINES and len(shown) + left_out == 200 * ((1 << 20) // 100)


def test_a_flood_of_complaints_leaves_the_last_words() -> None:
    outcome, events = child("complain")
    assert outcome.code == 7 and outcome.cause == "ended with exit code 7 (the last words)"
    (told,) = messages(events)
    assert told.endswith("the last words") and told.startswith("… 1,04") and len(told) < 70 * 100


def test_lines_of_megabytes_are_cut() -> None:
    outcome, events = child("long_lines")
    assert outcome.code == 0 and kinds(events) == ["end"]
    text, event = messages(events)
    assert text == "y" * TEXT + f"… ({8 << 20:,} bytes)" and event.startswith('{"event": "log"')
    assert EVENT_BYTES < (8 << 20) and len(event) < TEXT + 40


def test_bytes_that_are_no_text_are_shown_as_far_as_they_are() -> None:
    outcome, events = child("bytes_of_any_kind")
    assert outcome.code == 0 and kinds(events) == ["end"]
    assert messages(events) == ["\ufffd\ufffd caf\ufffd \x00", '{"event": "log", "message": "\ufffd"}']


def test_lines_in_pieces_are_put_together_and_the_last_needs_no_end() -> None:
    outcome, events = child("half_lines")
    assert outcome.code == 0 and kinds(events) == ["pieces", "end"] and messages(events) == ["no end"]


def test_what_is_no_event_is_a_line_and_a_malformed_event_harms_nobody() -> None:
    outcome, events = child("no_events")
    assert outcome.code == 0 and kinds(events) == ["step", "end"] and len(messages(events)) == 8

    from flows.lines import Lines
    from flows.live import cells

    for event in events:
        Lines()("rude", event)
        cells(event)


def test_a_traceback_before_the_process_proper_is_told() -> None:
    outcome, events = child("traceback")
    assert outcome.code == 1 and outcome.cause.startswith("ended with exit code 1 (RuntimeError: xxx")
    (told,) = messages(events)
    assert "Traceback (most recent call last)" in told and len(outcome.cause) < TEXT + 100 > len(told) - 2000


def test_an_error_with_a_giant_message_is_still_the_cause() -> None:
    outcome, _ = child("huge_error")
    assert outcome.code == 1 and outcome.cause.startswith("ValueError: nnn") and len(outcome.cause) < 20_000


def test_somebody_who_holds_the_pipes_holds_nobody_up() -> None:
    started = time.monotonic()
    outcome, events = child("holder")
    assert outcome.code == 0 and kinds(events) == ["end"]
    assert time.monotonic() - started < 25, "the process that was left behind lives for 30 s"


def test_a_stop_reaches_a_child_that_never_pauses() -> None:
    def slow(events: list[Event]) -> bool:
        time.sleep(0.001)
        return len(events) > 200

    outcome, events = child("chatty_events", slow)
    assert outcome.stopped and not outcome.cause and len(events) > 200


def test_the_next_child_goes_on_after_a_flood() -> None:
    events: list[Event] = []
    for kind in ("flood", "half_lines"):
        keep_running(
            Command("rude", "rude_processes", (kind,)), events.append, stop=lambda: False, silence=60,
            restarts=Restarts(limit=0),
        )  # fmt: skip
    assert kinds(events) == ["middle", "end", "pieces", "end"]
