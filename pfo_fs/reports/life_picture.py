"""A job's life over time: mean clock of each stage, time and power of an iteration, and stragglers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from pfo_fs.reports.collect import JobData, Window
from pfo_fs.reports.figures import (
    COLOURS,
    WIDTH,
    add_boxes,
    colour,
    drawing,
    fit,
    ink,
    page_axes,
    page_figure,
    set_ticks,
    set_title,
    shade,
    svg_of,
)
from pfo_fs.reports.forecast import Findings

_MOST_WINDOWS = 80
"""This many schedules fit beside one another; the table of the page has all."""
_TOP, _PANEL, _GAP = 18.0, 118.0, 34.0
"""Heights in px: of the space above the clocks, of a panel, and of the space between two panels."""
_LEFT, _PX = 76.0, WIDTH - 100.0
"""Left end and width of all panels, in px."""
_SMALL, _LABEL = 11, 11.5
_LABEL_PX = 40.0
"""Numbers of schedules are written where the one before is at least this far away."""


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


def edges_of(found: Findings, windows: Sequence[Window]) -> list[float]:
    """Returns when each schedule began, in s since the first of them, and when the last one ended.

    Directories hold no times of schedules, because clocks of hosts differ: the number of iterations times their
    duration is used.
    """
    last_step = found.data.last_step
    times_s = [(window.measured or found.predictions.get(window.number)) for window in windows]
    guess_s = fmean([one.time_s for one in times_s if one is not None] or [1.0])
    edges = [0.0]
    for window, one in zip(windows, times_s, strict=True):
        until = window.end_step if window.end_step is not None else last_step + 1
        edges.append(edges[-1] + max(1, until - window.index.start_step) * (guess_s if one is None else one.time_s))
    return edges


def life_svg(found: Findings) -> str:
    """Returns the picture for the page."""
    data = found.data
    windows = data.windows[-_MOST_WINDOWS:]
    clocks = [mean_clocks(data, window) for window in windows]
    stages = max((len(row) for row in clocks), default=0)
    row_px = 20.0 if stages <= 16 else 320.0 / stages
    edges = edges_of(found, windows)
    first = _TOP + stages * row_px + 54
    known = [mhz for row in clocks for mhz in row.values() if mhz]
    bounds = clock_bounds(data, known) if known else (0.0, 1.0)
    # Measured and predicted, of each schedule.
    pairs = [(window.measured, found.predictions.get(window.number)) for window in windows]
    with drawing("life"):
        figure = page_figure(WIDTH, first + 2 * _PANEL + _GAP + 40)
        all_axes = [page_axes(figure, _LEFT, _TOP, _LEFT + _PX, _TOP + stages * row_px)]
        names = [f"schedule {window.number}, {data.place}" for window in windows]
        tooltips = {"clocks": _add_clocks(all_axes[0], clocks, edges, names, bounds, row_px)}
        all_axes[0].set_ylabel(data.place.split()[-1])
        for number, (title, name, unit) in enumerate(
            (("time of an iteration (s)", "time_s", 1.0), ("power of all GPUs (kW)", "power_w", 1e3))
        ):
            top = first + number * (_PANEL + _GAP)
            panel = page_axes(figure, _LEFT, top, _LEFT + _PX, top + _PANEL)
            panel.set_xlim(0, edges[-1])
            set_title(panel, title)
            values = [[getattr(one, name) if one is not None else None for one in pair] for pair in pairs]
            tooltips |= _add_values(panel, values, edges, unit, f"panel{number}")
            all_axes.append(panel)
        _add_times(all_axes[0], all_axes[-1], windows, edges)
        _add_stragglers(all_axes, windows, edges)
        return svg_of(figure, f"Mean clock of each {data.place}, time and power of an iteration, over time", tooltips)


def _add_clocks(
    axes: Any,
    clocks: Sequence[Mapping[int, float]],
    edges: Sequence[float],
    names: Sequence[str],
    bounds: tuple[float, float],
    row_px: float,
) -> list[str]:
    """Adds a box for each stage of each schedule; returns their tooltips."""
    px_per_s = _PX / edges[-1]
    stages = max((len(row) for row in clocks), default=0)
    high_part = (1 - min(2.0, row_px * 0.1) / row_px) / 2
    boxes, faces, tooltips = [], [], []
    for stage in range(stages):
        for place, row in enumerate(clocks):
            mhz = row.get(stage, 0.0)
            tone = shade(mhz, *bounds)
            wide_px = (edges[place + 1] - edges[place]) * px_per_s
            gap_s = min(2.0, wide_px * 0.1) / px_per_s
            boxes.append((edges[place], edges[place + 1] - gap_s, float(stage), high_part))
            faces.append(colour(tone) if mhz else COLOURS["lane"])
            tooltips.append(f"{names[place]} {stage}: " + (f"{mhz:,.0f} MHz" if mhz else "left alone"))
            if wide_px > 34 and row_px > 11:
                style = {"fontsize": _SMALL, "color": ink(tone) if mhz else COLOURS["soft"]}
                text = f"{mhz:.0f}" if mhz else "–"
                axes.text(sum(boxes[-1][:2]) / 2, stage, text, ha="center", va="center_baseline", **style)
    add_boxes(axes, boxes, faces, "clocks")
    shown = range(0, stages, 1 if row_px > 11 else 4)
    axes.set_yticks(shown, [str(stage) for stage in shown])
    axes.set_xlim(0, edges[-1])
    axes.set_ylim(stages - 0.5, -0.5)
    return tooltips


def _add_values(
    axes: Any, values: Sequence[Sequence[float | None]], edges: Sequence[float], unit: float, name: str
) -> dict[str, list[str]]:
    """Adds measured and predicted values, in the middle of each schedule; returns their tooltips."""
    everything = [value for pair in values for value in pair if value is not None]
    axes.set_xticks([])
    if not everything:
        axes.set_yticks([])
        axes.text(0.01, 0.5, "nothing measured yet", transform=axes.transAxes, fontsize=_LABEL, color=COLOURS["soft"])
        return {}
    limits = axes.get_xlim()
    fit(axes, limits, [*everything, min(everything) * 0.95], room_y=0.06)
    axes.set_xlim(limits)
    set_ticks(axes.yaxis, 4, unit)
    tooltips = {}
    for position, (kind, style) in enumerate(
        (
            ("measured", {"marker": "o", "markersize": 8, "color": COLOURS["accent"]}),
            ("predicted", {"marker": "_", "markersize": 16, "markeredgewidth": 2.5, "color": COLOURS["s0"]}),
        )
    ):
        points = [
            ((edges[place] + edges[place + 1]) / 2, pair[position])
            for place, pair in enumerate(values)
            if pair[position] is not None
        ]
        if points:
            if kind == "measured":
                axes.plot(*zip(*points, strict=True), color=COLOURS["accent"], linewidth=1, alpha=0.45)
            axes.plot(*zip(*points, strict=True), linestyle="none", gid=f"{name}-{kind}", **style)
            tooltips[f"{name}-{kind}"] = [f"{kind}: {value / unit:.4g}" for _, value in points if value is not None]
    return tooltips


def _add_times(clocks: Any, below: Any, windows: Sequence[Window], edges: Sequence[float]) -> None:
    """Writes numbers of schedules at their begins below the clocks, and the time since the first one below all."""
    unit, seconds = next(
        ((unit, seconds) for unit, seconds in (("h", 3600.0), ("min", 60.0)) if edges[-1] >= 2 * seconds), ("s", 1.0)
    )
    set_ticks(below.xaxis, 8, seconds)
    below.set_xlabel(f"time ({unit})")
    shown: dict[float, str] = {}
    least_s = _LABEL_PX / _PX * edges[-1]
    for window, begin_s in zip(windows, edges, strict=False):
        if not shown or begin_s >= max(shown) + least_s:
            shown[begin_s] = f"{window.number}"
    clocks.set_xticks(list(shown), list(shown.values()), ha="left")
    clocks.set_xlabel("schedule", loc="left", labelpad=2)


def _add_stragglers(all_axes: Sequence[Any], windows: Sequence[Window], edges: Sequence[float]) -> None:
    """Draws frames around the schedules that were made for a straggler's pace."""
    for place, window in enumerate(windows):
        if window.follows_straggler:
            for axes in all_axes:
                axes.axvspan(*edges[place : place + 2], facecolor="none", edgecolor=COLOURS["warn"], linewidth=1.8)
            label = {"ha": "center", "fontsize": _LABEL, "fontweight": "bold", "color": COLOURS["warn"]}
            middle_s, top = sum(edges[place : place + 2]) / 2, all_axes[0].get_ylim()[1]
            all_axes[0].annotate("straggler", (middle_s, top), (0, 4), textcoords="offset points", **label)
