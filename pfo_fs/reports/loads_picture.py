"""One step of a job with clocks from loads: who waits for whom at max clocks, and at the clocks from loads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pfo_fs.loads_known import LastLoadStep
from pfo_fs.reports.figures import (
    COLOURS,
    WIDTH,
    add_boxes,
    colour,
    drawing,
    ink,
    page_axes,
    page_figure,
    set_ticks,
    set_title,
    shade,
    svg_of,
)

_LEFT, _RIGHT, _TOP, _BOTTOM, _GAP = 64.0, 24.0, 26.0, 44.0, 30.0
"""Space in px beside, above and below the two panels, and between them."""
_PANEL_PX = (WIDTH - _LEFT - _RIGHT - _GAP) / 2
_ROW_PX = 18.0
_LABEL_PX = 40.0
"""A clock is written into a bar that is at least so wide."""


def loads_svg(step: LastLoadStep, who: str, bounds: tuple[float, float]) -> str:
    """Returns the picture for the page.

    Args:
        step: The step.
        who: What a row is, such as "rank".
        bounds: Those of the colour scale, in MHz; the upper one is the highest clock.
    """
    rows, tooltips = len(step.lane), {}
    with drawing("loads"):
        figure = page_figure(WIDTH, _ROW_PX * rows + _TOP + _BOTTOM)
        for number, (title, work_s, clocks) in enumerate(
            (
                ("at max clocks", step.full_s, [round(bounds[1])] * rows),
                ("at the clocks from loads", step.work_s, step.mhz),
            )
        ):
            x = _LEFT + number * (_PANEL_PX + _GAP)
            axes = page_axes(figure, x, _TOP, x + _PANEL_PX, _TOP + _ROW_PX * rows)
            axes.set_xlim(0, 1.02 * (max(*step.work_s, *step.full_s) or 1.0))
            axes.set_ylim(rows - 0.5, -0.5)
            _add_bars(axes, work_s, clocks, bounds, number)
            end_s = max(work_s)
            tooltips[f"waits{number}"] = [
                f"{who} {lane} waits {end_s - time_s:.3g} s" for lane, time_s in zip(step.lane, work_s, strict=True)
            ]
            tooltips[f"work{number}"] = [
                f"{who} {lane} works {time_s:.3g} s at {mhz} MHz"
                for lane, time_s, mhz in zip(step.lane, work_s, clocks, strict=True)
            ]
            set_title(axes, title)
            axes.set_xlabel("time (s)")
            set_ticks(axes.xaxis, 6)
            axes.set_yticks(range(rows), [] if number else map(str, step.lane))
            axes.set_ylabel("" if number else who)
        return svg_of(figure, f"Own work and waiting of each {who} in step {step.step}, before and after", tooltips)


def _add_bars(
    axes: Any, work_s: Sequence[float], clocks: Sequence[int], bounds: tuple[float, float], number: int
) -> None:
    """Adds a bar of work in the colour of its clock, and one of waiting, for each row."""
    end_s, s_per_px = max(work_s), axes.get_xlim()[1] / _PANEL_PX
    tones = [shade(mhz, *bounds) for mhz in clocks]
    waits = [(time_s, end_s, float(place), 0.42) for place, time_s in enumerate(work_s)]
    add_boxes(axes, waits, [COLOURS["lane"]] * len(waits), f"waits{number}")
    work = [(0.0, time_s, float(place), 0.42) for place, time_s in enumerate(work_s)]
    add_boxes(axes, work, [colour(tone) for tone in tones], f"work{number}")
    for place, (time_s, mhz, tone) in enumerate(zip(work_s, clocks, tones, strict=True)):
        if time_s > _LABEL_PX * s_per_px:
            style = {"fontsize": 11, "color": ink(tone), "ha": "left", "va": "center_baseline"}
            axes.text(6 * s_per_px, place, f"{mhz}", **style)
    axes.axvline(end_s, color=COLOURS["bad"], linewidth=1.5)
