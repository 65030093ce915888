"""One step of a job with clocks from loads: who waits for whom at the highest clocks, and at the clocks from loads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pfo_fs.reports.figures import COLOURS, colour, drawing, ink, page_axes, page_figure, set_ticks, shade, svg_of
from pfo_fs.store.loads_known import LastLoadStep

_TOP, _BOTTOM, _GAP = 26.0, 44.0, 30.0
"""Heights in px: of the titles, of the times below, and of the space between two panels."""
_ROW_PX = 18.0
_LABEL_PX = 40.0
"""A clock is written into a bar that is at least so wide."""


def loads_svg(step: LastLoadStep, who: str, bounds: tuple[float, float], width: float, kind: str) -> str:
    """Returns the picture for the page.

    Args:
        step: The step.
        who: What a row is, such as "rank".
        bounds: Those of the colour scale, in MHz; the upper one is the highest clock.
        width: Width in pixels.
        kind: `wide` (panels side by side) or `narrow` (one below the other).
    """
    narrow = kind == "narrow"
    left, room = (40.0, 8.0) if narrow else (64.0, 24.0)
    rows_px = _ROW_PX * len(step.lane)
    panel_px = width - left - room if narrow else (width - left - room - _GAP) / 2
    below_px = rows_px + _TOP + _BOTTOM
    longest_s = max(*step.work_s, *step.full_s) or 1.0
    panels = (
        ("at the highest clocks", step.full_s, [round(bounds[1])] * len(step.lane)),
        ("at the clocks from loads", step.work_s, step.mhz),
    )
    tooltips: dict[str, Sequence[str]] = {}
    with drawing(f"loads {kind}"):
        figure = page_figure(width, below_px * (2 if narrow else 1))
        for number, (title, seconds, clocks) in enumerate(panels):
            x = left if narrow else left + number * (panel_px + _GAP)
            y = _TOP + (number * below_px if narrow else 0)
            axes = page_axes(figure, x, y, x + panel_px, y + rows_px)
            axes.set_xlim(0, longest_s * 1.02)
            axes.set_ylim(len(step.lane) - 0.5, -0.5)
            _add_bars(axes, seconds, clocks, bounds, panel_px / (longest_s * 1.02), number)
            tooltips[f"waits{number}"], tooltips[f"work{number}"] = _texts(step.lane, who, seconds, clocks)
            axes.set_title(title, loc="left", fontsize=12, color=COLOURS["soft"], pad=6)
            axes.set_xlabel("time (s)")
            set_ticks(axes.xaxis, 4 if narrow else 6)
            axes.set_yticks(range(len(step.lane)), map(str, step.lane) if narrow or not number else [])
            if narrow or not number:
                axes.set_ylabel(who)
        return svg_of(
            figure, f"Own work and waiting of each {who} in step {step.step}, before and after", kind, tooltips
        )


def _add_bars(
    axes: Any,
    seconds: Sequence[float],
    clocks: Sequence[int],
    bounds: tuple[float, float],
    px_per_s: float,
    number: int,
) -> None:
    """Adds a bar of work in the colour of its clock, and one of waiting, for each row."""
    end_s, places = max(seconds), range(len(seconds))
    waits_s = [end_s - time_s for time_s in seconds]
    tones = [shade(mhz, *bounds) for mhz in clocks]
    for gid, widths_s, starts_s, faces in (
        (f"waits{number}", waits_s, seconds, [COLOURS["lane"]] * len(seconds)),
        (f"work{number}", seconds, [0.0] * len(seconds), [colour(tone) for tone in tones]),
    ):
        _add_boxes(axes, widths_s, starts_s, faces, gid)
    for place, time_s, mhz, tone in zip(places, seconds, clocks, tones, strict=True):
        if time_s * px_per_s > _LABEL_PX:
            style = {"fontsize": 11, "color": ink(tone), "ha": "left", "va": "center_baseline"}
            axes.text(6 / px_per_s, place, f"{mhz}", **style)
    axes.axvline(end_s, color=COLOURS["bad"], linewidth=1.5)
    axes.grid(visible=False)


def _add_boxes(axes: Any, widths_s: Sequence[float], starts_s: Sequence[float], faces: Sequence[str], gid: str) -> None:
    from matplotlib.collections import PolyCollection

    high = 0.42
    boxes = [
        [(start, place - high), (start + wide, place - high), (start + wide, place + high), (start, place + high)]
        for place, (start, wide) in enumerate(zip(starts_s, widths_s, strict=True))
    ]
    axes.add_collection(PolyCollection(boxes, facecolors=faces, edgecolors="none", gid=gid), autolim=False)


def _texts(
    lanes: Sequence[int], who: str, seconds: Sequence[float], clocks: Sequence[int]
) -> tuple[list[str], list[str]]:
    """The tooltips of waiting and of work."""
    end_s = max(seconds)
    waits = [f"{who} {lane} waits {end_s - time_s:.3g} s" for lane, time_s in zip(lanes, seconds, strict=True)]
    rows = zip(lanes, seconds, clocks, strict=True)
    return waits, [f"{who} {lane} works {time_s:.3g} s at {mhz} MHz" for lane, time_s, mhz in rows]
