"""Pictures as SVG: boxes with tooltips, texts and lines in the page's colours, and colour scales."""

from __future__ import annotations

import math
from collections.abc import Iterable
from html import escape

WIDTH = 1080.0
"""Width in pixels of the page's pictures. On narrower screens they scroll sideways, so that text stays readable."""
SCALE = (
    *("#443a83", "#404588", "#3c4f8a", "#375a8c", "#33638d", "#2f6c8e", "#2b748e", "#277e8e", "#24868e", "#218f8d"),
    *("#1f978b", "#1fa188", "#23a983", "#2cb17e", "#38b977", "#4ac16d", "#5cc863", "#70cf57", "#86d549", "#a0da39"),
    *("#b8de29", "#d0e11c", "#e7e419", "#fde725"),
)
"""Viridis without its darkest part. It becomes lighter all the way, so its order does not depend on hue."""
LIGHT_INK, DARK_INK = "#fffffe", "#000001"
"""Colours of text on a shade, in both themes."""
_ALONE = (
    "background: #fff; font-family: sans-serif; --soft: #5a6675; --lane: #e3e7ed; --card: #fff; --bad: #b3341c; "
    "--warn: #9a5b00"
)

Bounds = tuple[float, float]
"""The lowest and the highest value of a colour scale."""


def shade(value: float, bounds: Bounds) -> int:
    """Returns the place in `SCALE` of a value between two bounds."""
    low, high = bounds
    share = (value - low) / (high - low) if high > low else 1.0
    return min(len(SCALE) - 1, max(0, int(share * len(SCALE))))


def ink(tone: int) -> str:
    """Returns black or white, whichever is easier to read on a shade."""
    return DARK_INK if tone >= len(SCALE) * 0.45 else LIGHT_INK


def ticks_of(low: float, high: float, about: int) -> list[float]:
    """Returns round values between two others, in at most `about` steps."""
    raw = max((high - low) / about, 1e-12)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    return [number * step for number in range(first, math.floor(high / step + 1e-9) + 1)]


class Svg:
    """One picture; places are pixels from its upper left corner, colours those of CSS.

    Args:
        width, height: Its size in pixels; the page makes it smaller where the window is.
        name: What it shows, as text for screen readers.
        alone: Whether it is a file of its own, which has no colours of a page.
    """

    def __init__(self, width: float, height: float, name: str, *, alone: bool = False) -> None:
        view = f'xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}"'
        # More than the page's width is not made smaller: it scrolls sideways.
        style = _ALONE if alone else f"min-width: {width:g}px" if width > WIDTH else ""
        own = f' style="{style}"' if style else ""
        about = f'class="chart" role="img" aria-label="{escape(name)}"'
        self._parts = [f"<svg {view} {about}{own}><title>{escape(name)}</title>"]

    def box(
        self, left: float, top: float, width: float, height: float, fill: str, tooltip: str = "", stroke: str = "none"
    ) -> None:
        """Adds a box."""
        place = f'x="{left:.1f}" y="{top:.1f}" width="{max(0.0, width):.1f}" height="{height:.1f}"'
        title = f"<title>{escape(tooltip)}</title>" if tooltip else ""
        self._parts.append(f'<rect {place} style="fill: {fill}; stroke: {stroke}">{title}</rect>')

    def text(
        self, x: float, y: float, text: str, *, fill: str = "var(--soft)", anchor: str = "middle", turned: bool = False
    ) -> None:
        """Adds a text, centred in height; `anchor` says which part of it is at `x`: start, middle or end."""
        turn = f' transform="rotate(-90 {x:.1f} {y:.1f})"' if turned else ""
        place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" dominant-baseline="central"{turn}'
        self._parts.append(f'<text {place} style="fill: {fill}; font-size: 11.5px">{escape(text)}</text>')

    def line(self, points: Iterable[tuple[float, float]], colour: str) -> None:
        """Adds a line from point to point."""
        places = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self._parts.append(f'<polyline points="{places}" style="fill: none; stroke: {colour}; stroke-width: 1.5"/>')

    def markup(self) -> str:
        """Returns the element."""
        return "".join([*self._parts, "</svg>"])
