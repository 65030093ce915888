"""Scales, ticks and frames of the page's charts, in SVG."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from pfo_fs.reports.markup import Markup, h

# viridis, which grows lighter all the way: order is seen without telling hues apart.
_RAMP = ("#443a83", "#3b528b", "#31688e", "#287c8e", "#21918c", "#2fb47c", "#5ec962", "#9bd93c", "#d8e219", "#fde725")
SHADES = 24
"""So many colours a scale has."""


@dataclass(frozen=True)
class Scale:
    """From values to pixels, linearly."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """Pixel of a value."""
        span = self.high - self.low
        return self.start + (self.end - self.start) * ((value - self.low) / span if span else 0.5)

    def ticks(self, about: int) -> list[float]:
        """Round values within the scale, about so many."""
        span = self.high - self.low
        if span <= 0 or not math.isfinite(span):
            return [self.low]
        raw = span / max(1, about)
        power = 10.0 ** math.floor(math.log10(raw))
        step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw * 0.999)
        first = math.ceil(self.low / step - 1e-9)
        return [n * step for n in range(first, math.floor(self.high / step + 1e-9) + 1)]


def fitting(values: Sequence[float], start: float, end: float, room: float = 0.06) -> Scale:
    """A scale that holds all values with some room on both sides."""
    low, high = min(values), max(values)
    pad = (high - low) * room or abs(high) * 0.05 or 1.0
    return Scale(low - pad, high + pad, start, end)


def decimals(ticks: Sequence[float]) -> Callable[[float], str]:
    """A format with as many decimals as these ticks need."""
    step = min((b - a for a, b in pairwise(ticks)), default=1.0)
    places = max(0, -math.floor(math.log10(step) + 1e-9)) if step > 0 else 0
    if abs(step * 10**places - round(step * 10**places)) > 1e-6 * step * 10**places:  # steps of 2.5
        places += 1
    return lambda value: f"{value:,.{places}f}"


def shade(share: float) -> int:
    """Which of the `SHADES` stands for a place between 0 and 1."""
    return min(SHADES - 1, max(0, int(share * SHADES)))


def colour(step: int) -> str:
    """The colour of a shade, as #rrggbb."""
    at = step / (SHADES - 1) * (len(_RAMP) - 1)
    first = min(int(at), len(_RAMP) - 2)
    part = at - first
    below, above = (tuple(int(_RAMP[n][i : i + 2], 16) for i in (1, 3, 5)) for n in (first, first + 1))
    return "#" + "".join(f"{round(a + (b - a) * part):02x}" for a, b in zip(below, above, strict=True))


def ink(step: int) -> str:
    """Black or white, whichever reads better on a shade."""
    return "#000" if step >= SHADES * 0.45 else "#fff"


def y_axis(scale: Scale, left: float, right: float, about: int, shown: float = 1.0) -> Markup:
    """Grid lines and their values; `shown` is what one unit of the labels is in the scale's unit."""
    ticks = scale.ticks(about)
    text = decimals([tick / shown for tick in ticks])
    return h(
        "g",
        (
            (
                h("line", x1=left, x2=right, y1=scale(tick), y2=scale(tick), class_="grid"),
                h("text", text(tick / shown), x=left - 6, y=scale(tick) + 4, class_="tick end"),
            )
            for tick in ticks
        ),
    )


def x_axis(scale: Scale, top: float, bottom: float, about: int) -> Markup:
    """Grid lines and their values below."""
    ticks = scale.ticks(about)
    text = decimals(ticks)
    return h(
        "g",
        (
            (
                h("line", x1=scale(tick), x2=scale(tick), y1=top, y2=bottom, class_="grid"),
                h("text", text(tick), x=scale(tick), y=bottom + 16, class_="tick middle"),
            )
            for tick in ticks
        ),
    )


def path(points: Sequence[tuple[float, float]]) -> str:
    """A line through points, as SVG's path data."""
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points) if points else ""


def chart(width: float, height: float, title: str, *children: Markup, kind: str = "") -> Markup:
    """A picture with a name for those who do not see it."""
    return h(
        "svg",
        h("title", title),
        children,
        viewBox=f"0 0 {width:g} {height:g}",
        class_=f"chart {kind}".strip(),
        role="img",
        aria_label=title,
    )
