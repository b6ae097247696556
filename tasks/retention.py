"""Which checkpoints of an RL stage stay, as a pure rule of what is known about them and the settings."""

from collections.abc import Sequence
from dataclasses import dataclass

from schemas.upkeep import Retention


@dataclass(frozen=True)
class Candidate:
    """A checkpoint before the rule."""

    step: int
    hours: float
    """Its age."""
    referred: str = ""
    """Who refers to its weights, in words."""
    gone: bool = False
    """It has expired already, which is for ever."""


@dataclass(frozen=True)
class Verdict:
    """Whether a checkpoint stays, and why."""

    kept: bool
    why: str


def judge(
    candidates: Sequence[Candidate], settings: Retention, *, published: Sequence[int], newest_policies: int, end: int
) -> dict[int, Verdict]:
    """Step → verdict. `published`: policy versions; the newest so many of them stay, and with them their checkpoints.
    `end`: the checkpoint that the stage ended with (0: none)."""
    present = sorted(c.step for c in candidates if not c.gone)
    last, needed = set(present[-settings.keep_last :]), set(sorted(published)[-newest_policies:])

    def verdict(one: Candidate) -> Verdict:
        every = settings.keep_every
        reasons = [
            (one.step in last, f"keep_last = {settings.keep_last}"),
            (every > 0 and one.step % every == 0, f"keep_every = {every}"),
            (bool(one.referred), one.referred),
            (one.step == end, "RL ended with it"),
            (one.step in needed, f"one of the newest {newest_policies} policies"),
            (one.hours < settings.min_age_hours, f"younger than min_age_hours = {settings.min_age_hours:g}"),
        ]
        if one.gone:
            return Verdict(False, "expired already")
        return next((Verdict(True, why) for holds, why in reasons if holds), Verdict(False, rule(settings)))

    return {c.step: verdict(c) for c in candidates}


def rule(settings: Retention) -> str:
    """The settings that did not keep a checkpoint."""
    every = f", keep_every = {settings.keep_every}" if settings.keep_every else ""
    return f"keep_last = {settings.keep_last}{every}"
