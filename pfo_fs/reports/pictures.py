"""Pictures of the page: what ran when, and who waits for whom in a step with clocks from loads."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import TYPE_CHECKING

from pfo_fs.loads_known import LastLoadStep
from pfo_fs.reports.collect import JobData, Window
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

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MOST_WINDOWS = 80
"""This many schedules fit beside one another; the table of the page has all."""
_LEFT, _RIGHT, _TOP, _BOTTOM = 76.0, 24.0, 24.0, 44.0
"""Space in px around the boxes."""
_ROW_PX, _MOST_PX = 20.0, 320.0
"""Height of a stage, and of all of them."""
_LABEL_PX = 34.0
"""A box has the clock written in it, and its column the schedule's number, where it is at least so wide."""
_GAP = 30.0
"""Space in px between the two panels of a step."""
_PANEL_PX = (WIDTH - _LEFT - _RIGHT - _GAP) / 2


def mean_clocks(data: JobData, window: Window) -> dict[int, float]:
    """Returns the mean clock of each pipeline rank (MHz) over its instructions; 0 where clocks are left alone."""
    by_stage: dict[int, list[int]] = {}
    for info in data.infos:
        if info.tp_rank == 0:
            schedule = window.schedules.get(info.rank)
            clocks = [mhz for _, mhz in schedule.frequencies] if schedule is not None else [0]
            by_stage.setdefault(info.pp_rank, []).extend(clocks or [0])
    return {stage: fmean(clocks) for stage, clocks in sorted(by_stage.items())}


def clock_bounds(data: JobData, clocks: Sequence[float]) -> tuple[float, float]:
    """Returns the bounds of a colour scale: from the lowest of these clocks to the highest that the GPUs offer (MHz).

    So a job that runs at a single low clock has the colour of a low clock.
    """
    offered = [max(info.available_frequencies) for info in data.infos if info.available_frequencies]
    return min(clocks), max(*clocks, *offered) if offered else max(clocks)


def life_svg(data: JobData, bounds: tuple[float, float]) -> str:
    """Returns the picture for the page.

    Args:
        data: The job, with at least one schedule.
    """
    windows = data.windows[-_MOST_WINDOWS:]
    begins = [window.index.start_step for window in windows]
    edges = [*begins, max(begins[-1], data.last_step) + 1]
    stages = max(1, *(len(mean_clocks(data, window)) for window in windows))
    row_px = min(_ROW_PX, _MOST_PX / stages)
    px_per_step = (WIDTH - _LEFT - _RIGHT) / max(1, edges[-1] - edges[0])
    half = (1 - min(2.0, row_px * 0.1) / row_px) / 2
    boxes, faces, tooltips = [], [], []
    with drawing("life"):
        figure = page_figure(WIDTH, _TOP + stages * row_px + _BOTTOM)
        axes = page_axes(figure, _LEFT, _TOP, WIDTH - _RIGHT, _TOP + stages * row_px)
        for window, first, end in zip(windows, edges, edges[1:], strict=False):
            wide_px, middle = (end - first) * px_per_step, (first + end) / 2
            for stage, mhz in mean_clocks(data, window).items():
                tone = shade(mhz, *bounds)
                boxes.append((first, end - min(2.0, wide_px * 0.1) / px_per_step, float(stage), half))
                faces.append(colour(tone) if mhz else COLOURS["lane"])
                about = f"{mhz:,.0f} MHz" if mhz else "left alone"
                tooltips.append(f"schedule {window.number}, {data.place} {stage}: {about}")
                if wide_px > _LABEL_PX and row_px > _ROW_PX / 2:
                    text, shown = (f"{mhz:.0f}", ink(tone)) if mhz else ("–", COLOURS["soft"])
                    axes.text(middle, stage, text, ha="center", va="center_baseline", fontsize=11, color=shown)
            if wide_px > _LABEL_PX:
                axes.annotate(
                    f"{window.number}",
                    (middle, -0.5),
                    (0, 4),
                    textcoords="offset points",
                    ha="center",
                    fontsize=11.5,
                    color=COLOURS["soft"],
                )
            if window.follows_straggler:
                axes.axvspan(first, end, facecolor="none", edgecolor=COLOURS["warn"], linewidth=1.8)
        add_boxes(axes, boxes, faces, "clocks")
        axes.set_yticks(range(0, stages, 1 if row_px > _ROW_PX / 2 else 4))
        axes.set_ylabel(data.place.split()[-1])
        axes.set_ylim(stages - 0.5, -0.5)
        axes.set_xlim(edges[0], edges[-1])
        set_ticks(axes.xaxis, 8)
        axes.set_xlabel("step")
        return svg_of(
            figure, f"Mean clock of each {data.place} under each schedule, over the steps", {"clocks": tooltips}
        )


# ---- one step of a job with clocks from loads


def loads_svg(step: LastLoadStep, who: str, bounds: tuple[float, float]) -> str:
    """Returns the picture for the page.

    Args:
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
    axes: Axes, work_s: Sequence[float], clocks: Sequence[int], bounds: tuple[float, float], number: int
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
            axes.text(6 * s_per_px, place, f"{mhz}", fontsize=11, color=ink(tone), ha="left", va="center_baseline")
    axes.axvline(end_s, color=COLOURS["bad"], linewidth=1.5)
