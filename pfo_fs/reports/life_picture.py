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
    round_values,
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
    data, left, right = found.data, 88.0, WIDTH - 24
    windows = data.windows[-_MOST_WINDOWS:]
    clocks = [mean_clocks(data, window) for window in windows]
    stages = max((len(row) for row in clocks), default=0)
    row_px = 20.0 if stages <= 16 else 320.0 / stages
    edges = edges_of(found, windows)
    px_per_s = (right - left) / edges[-1]
    first = _TOP + stages * row_px + 22
    bottom = first + 2 * _PANEL + _GAP
    known = [mhz for row in clocks for mhz in row.values() if mhz]
    bounds = clock_bounds(data, known) if known else (0.0, 1.0)
    with drawing("life"):
        figure = page_figure(WIDTH, bottom + 40)
        axes = page_axes(figure, left, _TOP, right, first - 22)
        names = [f"schedule {window.number}, {data.place}" for window in windows]
        tooltips = {"clocks": _add_clocks(axes, clocks, edges, names, bounds, (px_per_s, row_px))}
        axes.text(-6 / px_per_s, -7 / row_px - 0.5, data.place.split()[-1], ha="right", **_style())
        predicted = [found.predictions.get(window.number) for window in windows]
        times = [
            (w.measured.time_s if w.measured else None, p.time_s if p else None)
            for w, p in zip(windows, predicted, strict=True)
        ]
        powers = [
            (w.measured.power_w if w.measured else None, p.power_w if p else None)
            for w, p in zip(windows, predicted, strict=True)
        ]
        for number, (values, title, unit) in enumerate(
            ((times, "time of an iteration (s)", 1.0), (powers, "power of all GPUs (kW)", 1e3))
        ):
            top = first + number * (_PANEL + _GAP)
            panel = page_axes(figure, left, top, right, top + _PANEL)
            panel.set_xlim(0, edges[-1])
            set_title(panel, title)
            tooltips |= _add_values(panel, values, edges, unit, f"panel{number}")
        _add_times(panel, windows, edges, px_per_s)
        _add_stragglers(figure, windows, edges, (left, px_per_s), (_TOP - 2, bottom + 2))
        name = f"Mean clock of each {data.place}, time and power of an iteration, over time"
        return svg_of(figure, name, tooltips)


def _style(strong: bool = False) -> dict[str, Any]:
    if strong:
        return {"fontsize": _LABEL, "fontweight": "bold"}
    return {"fontsize": _LABEL, "color": COLOURS["soft"]}


def _add_clocks(
    axes: Any,
    clocks: Sequence[Mapping[int, float]],
    edges: Sequence[float],
    names: Sequence[str],
    bounds: tuple[float, float],
    scale: tuple[float, float],
) -> list[str]:
    """Adds a box for each stage of each schedule; returns their tooltips. `scale`: px per second and per row."""
    px_per_s, row_px = scale
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
    axes.set_xticks([])
    shown = range(0, stages, 1 if row_px > 11 else 4)
    axes.set_yticks(shown, [str(stage) for stage in shown])
    axes.set_xlim(0, edges[-1])
    axes.set_ylim(stages - 0.5, -0.5)
    return tooltips


def _add_values(
    axes: Any, values: Sequence[tuple[float | None, float | None]], edges: Sequence[float], unit: float, name: str
) -> dict[str, list[str]]:
    """Adds measured and predicted values, in the middle of each schedule; returns their tooltips."""
    everything = [value for pair in values for value in pair if value is not None]
    axes.set_xticks([])
    if not everything:
        axes.set_yticks([])
        axes.text(0.01, 0.5, "nothing measured yet", transform=axes.transAxes, **_style())
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


def _add_times(axes: Any, windows: Sequence[Window], edges: Sequence[float], px_per_s: float) -> None:
    """Writes the time since the first schedule below a panel, and numbers of schedules at their begins."""
    from matplotlib.transforms import ScaledTranslation, blended_transform_factory

    def below(x: float, text: str, down_px: float, strong: bool, side: str) -> None:
        anchor = axes.transData if side != "right" else axes.transAxes
        shift = ScaledTranslation((-14 if side == "right" else 0) / 72, -down_px / 72, axes.figure.dpi_scale_trans)
        place = blended_transform_factory(anchor, axes.transAxes) + shift
        axes.text(x, 0, text, ha=side, va="baseline", transform=place, **_style(strong))

    unit, seconds = next(
        ((unit, seconds) for unit, seconds in (("h", 3600.0), ("min", 60.0)) if edges[-1] >= 2 * seconds), ("s", 1.0)
    )
    places, ticks = round_values(0.0, edges[-1] / seconds, 8)
    for tick in ticks:
        below(tick * seconds, f"{tick:,.{places}f}", 16, True, "center")
    last_px = -_LABEL_PX
    for window, begin_s in zip(windows, edges, strict=False):
        if begin_s * px_per_s >= last_px + _LABEL_PX:
            last_px = begin_s * px_per_s
            below(begin_s, f"{window.number}", 31, False, "left")
    below(0, f"time ({unit})", 16, True, "right")
    below(0, "schedule", 31, False, "right")


def _add_stragglers(
    figure: Any,
    windows: Sequence[Window],
    edges: Sequence[float],
    columns: tuple[float, float],
    rows: tuple[float, float],
) -> None:
    """Draws a frame around the schedules that were made for a straggler's pace."""
    from matplotlib.patches import Rectangle

    width, height = (size * 72 for size in figure.get_size_inches())
    (left, px_per_s), (top, bottom) = columns, rows
    for place, window in enumerate(windows):
        if not window.follows_straggler:
            continue
        x, column_px = left + edges[place] * px_per_s, (edges[place + 1] - edges[place]) * px_per_s
        box = (x - 1) / width, 1 - bottom / height
        size = column_px / width, (bottom - top) / height
        style: dict[str, Any] = {"facecolor": "none", "edgecolor": COLOURS["warn"], "linewidth": 1.8}
        figure.add_artist(Rectangle(box, *size, transform=figure.transFigure, **style))
        middle, above = (x + column_px / 2) / width, 1 - (top - 4) / height
        label = {"ha": "center", "fontsize": _LABEL, "fontweight": "bold", "color": COLOURS["warn"]}
        figure.text(middle, above, "straggler", **label)
