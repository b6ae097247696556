"""Curves as SVG, by hand: reward against optimizer steps and against seconds, the seeds' spread as a band."""

from collections.abc import Callable, Sequence
from html import escape
from typing import Any

import numpy as np

COLOURS = ("#0072b2", "#009e73", "#e69f00", "#d55e00")
BOUNDS = ("bound 0", "bound 1", "bound 4", "bound 8")
"""A bound has the same colour in every panel."""
WIDTH, HEIGHT, LEFT, GAP = 400, 190, 60, 90
POINTS = 120

Curve = tuple[np.ndarray, np.ndarray]
Setting = tuple[tuple[str, int, int, int], list[dict[str, Any]]]
OfRun = Callable[[dict[str, Any]], list[float]]


def plot(settings: Sequence[Setting], rewards: OfRun, seconds: OfRun) -> str:
    """One line of two panels for each correction by bound, and one by concurrency; lines without a run are left out."""
    bands = [(title, named) for title, named in _bands(settings) if named]
    parts = [_panels(i, *band, rewards, seconds) for i, band in enumerate(bands)]
    width, height = 2 * (WIDTH + LEFT) + 20, len(bands) * (HEIGHT + GAP) + 20
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
        f'font-size="12">\n<rect width="{width}" height="{height}" fill="white"/>\n{"".join(parts)}</svg>\n'
    )


def _bands(settings: Sequence[Setting]) -> list[tuple[str, list[tuple[str, list[dict[str, Any]]]]]]:
    widest = max((concurrency for (_, concurrency, _, _), _ in settings), default=0)
    found = []
    for wanted in ("none", "decoupled", "truncated"):
        named = [(f"bound {b}", runs) for (c, n, b, _), runs in settings if c == wanted and n == widest]
        found.append((f"correction {wanted}, {widest} episodes in flight", named))
    narrow = [(b, c) for (c, n, b, _), _ in settings if n != widest]
    by_width = [(f"{n} in flight", runs) for (c, n, b, _), runs in settings if narrow and (b, c) == narrow[0]]
    title = f"bound {narrow[0][0]}, correction {narrow[0][1]}, by episodes in flight" if narrow else ""
    return [*found, (title, by_width)]


def _panels(
    line: int, title: str, named: list[tuple[str, list[dict[str, Any]]]], rewards: OfRun, seconds: OfRun
) -> str:
    y = 20 + line * (HEIGHT + GAP)
    colours = [_colour(i, name) for i, (name, _) in enumerate(named)]
    by_step = [[_curve(range(1, len(rewards(r)) + 1), rewards(r)) for r in runs] for _, runs in named]
    by_time = [[_curve(seconds(r), rewards(r)) for r in runs if r["learners"] == 1] for _, runs in named]
    legend = [
        f'<text x="{LEFT + 90 * i}" y="{y + 18}" fill="{colours[i]}">{escape(name)}</text>\n'
        for i, (name, _) in enumerate(named)
    ]
    head = f'<text x="{LEFT}" y="{y}" font-weight="bold">{escape(title)}</text>\n'
    steps = _panel(LEFT, y + 26, list(zip(colours, by_step, strict=True)), "optimizer steps")
    wall = _panel(2 * LEFT + WIDTH, y + 26, list(zip(colours, by_time, strict=True)), "seconds")
    return "".join([head, *legend, steps, wall])


def _colour(number: int, name: str) -> str:
    return COLOURS[(BOUNDS.index(name) if name in BOUNDS else number) % len(COLOURS)]


def _curve(xs: Sequence[float] | range, ys: Sequence[float]) -> Curve:
    return np.asarray(xs, float), np.asarray(ys, float)


def _panel(x: int, y: int, lines: list[tuple[str, list[Curve]]], label: str) -> str:
    """Axes and, for each line, the mean of its curves and their spread; one that has ended stays where it came to."""
    end = max((float(curve[0][-1]) for _, curves in lines for curve in curves), default=1.0) or 1.0

    def place(across: np.ndarray, up: np.ndarray) -> str:
        return " ".join(
            f"{x + WIDTH * a / end:.1f},{y + HEIGHT * (1 - u):.1f}" for a, u in zip(across, up, strict=True)
        )

    parts = [_axes(x, y, end, label)]
    for colour, curves in ((colour, curves) for colour, curves in lines if curves):
        grid = np.linspace(max(c[0][0] for c in curves), max(c[0][-1] for c in curves), POINTS)
        values = np.stack([np.interp(grid, *curve) for curve in curves])
        around = place(np.concatenate([grid, grid[::-1]]), np.concatenate([values.min(0), values.max(0)[::-1]]))
        parts.append(f'<polygon points="{around}" fill="{colour}" opacity="0.15"/>\n')
        middle = place(grid, values.mean(0))
        parts.append(f'<polyline points="{middle}" fill="none" stroke="{colour}" stroke-width="1.8"/>\n')
    return "".join(parts)


def _axes(x: int, y: int, end: float, label: str) -> str:
    parts = [f'<rect x="{x}" y="{y}" width="{WIDTH}" height="{HEIGHT}" fill="none" stroke="#999"/>\n']
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        up = y + HEIGHT * (1 - share)
        parts.append(f'<line x1="{x}" x2="{x + WIDTH}" y1="{up}" y2="{up}" stroke="#eee"/>\n')
        parts.append(f'<text x="{x - 6}" y="{up + 4}" text-anchor="end">{share:.0%}</text>\n')
        across, below = x + WIDTH * share, y + HEIGHT + 15
        parts.append(f'<text x="{across}" y="{below}" text-anchor="middle">{end * share:.0f}</text>\n')
    parts.append(f'<text x="{x + WIDTH / 2}" y="{y + HEIGHT + 30}" text-anchor="middle">{label}</text>\n')
    return "".join(parts)
