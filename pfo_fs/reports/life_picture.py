"""What ran when: the mean clock of each stage under each schedule, over the steps of the job."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

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
    shade,
    svg_of,
)

_MOST_WINDOWS = 80
"""This many schedules fit beside one another; the table of the page has all."""
_LEFT, _RIGHT, _TOP, _BOTTOM = 76.0, 24.0, 24.0, 44.0
"""Space in px around the boxes."""
_ROW_PX, _MOST_PX = 20.0, 320.0
"""Height of a stage, and of all of them."""
_LABEL_PX = 34.0
"""A box has the clock written in it, and its column the schedule's number, where it is at least so wide."""


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
        bounds: Those of the colour scale, in MHz.
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
                label = {"ha": "center", "fontsize": 11.5, "color": COLOURS["soft"]}
                axes.annotate(f"{window.number}", (middle, -0.5), (0, 4), textcoords="offset points", **label)
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
