"""A job's life, schedule by schedule: mean clock of each stage, time and power of an iteration, and stragglers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from pfo_fs.reports.collect import JobData, Window
from pfo_fs.reports.figures import (
    COLOURS,
    colour,
    drawing,
    fit,
    ink,
    page_axes,
    page_figure,
    set_ticks,
    shade,
    svg_of,
)
from pfo_fs.reports.forecast import Predicted

_MOST_WINDOWS = 80
"""This many schedules fit beside one another; the table of the page has all."""
_TOP, _PANEL, _GAP = 18.0, 118.0, 34.0
"""Heights in px: of the space above the clocks, of a panel, and of the space between two panels."""
_SMALL, _LABEL = 11, 11.5


def mean_clocks(data: JobData, window: Window) -> dict[int, float]:
    """Returns the mean clock of each pipeline rank (MHz) over its instructions; 0 where clocks are left alone."""
    by_stage: dict[int, list[int]] = {}
    for info in data.infos:
        if info.tp_rank == 0:
            schedule = window.schedules.get(info.rank)
            clocks = [mhz for _, mhz in schedule.frequencies] if schedule is not None else [0]
            by_stage.setdefault(info.pp_rank, []).extend(clocks or [0])
    return {stage: fmean(clocks) for stage, clocks in sorted(by_stage.items())}


def life_svg(data: JobData, predictions: Mapping[int, Predicted], width: float, kind: str) -> str:
    """Returns the picture for the page.

    Args:
        data: The job.
        predictions: The predictions by number of the schedule.
        width: Width in pixels.
        kind: `wide` or `narrow`.
    """
    narrow = kind == "narrow"
    left, right = (44.0, width - 8) if narrow else (76.0, width - 24)
    windows = data.windows[-_MOST_WINDOWS:]
    clocks = [mean_clocks(data, window) for window in windows]
    stages = max((len(row) for row in clocks), default=0)
    row_px = 20.0 if stages <= 16 else 320.0 / stages
    column_px = (right - left) / max(1, len(windows))
    first = _TOP + stages * row_px + 22
    bottom = first + 2 * _PANEL + _GAP
    with drawing(f"life {kind}"):
        figure = page_figure(width, bottom + 40)
        axes = page_axes(figure, left, _TOP, right, first - 22)
        names = [f"schedule {window.number}, {data.place}" for window in windows]
        tooltips = {"clocks": _add_clocks(axes, clocks, stages, names, column_px, row_px)}
        axes.text(-6 / column_px, -7 / row_px - 0.5, data.place.split()[-1], ha="right", **_style())
        predicted = [predictions.get(window.number) for window in windows]
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
            panel.set_xlim(-0.5, len(windows) - 0.5)
            panel.set_title(title, loc="left", fontsize=12, color=COLOURS["soft"], pad=4)
            tooltips |= _add_values(panel, values, unit, f"panel{number}")
        _add_steps(panel, windows, max(1, -(-len(windows) * (26 if narrow else 34) // int(right - left))), narrow)
        _add_stragglers(figure, windows, (left, column_px), (_TOP - 2, bottom + 2))
        name = f"Mean clock of each {data.place}, time and power of an iteration, schedule by schedule"
        return svg_of(figure, name, kind, tooltips)


def _style(strong: bool = False) -> dict[str, Any]:
    if strong:
        return {"fontsize": _LABEL, "fontweight": "bold"}
    return {"fontsize": _LABEL, "color": COLOURS["soft"]}


def _add_clocks(
    axes: Any, clocks: Sequence[Mapping[int, float]], stages: int, names: Sequence[str], column_px: float, row_px: float
) -> list[str]:
    """Adds a box for each stage of each schedule; returns their tooltips."""
    from matplotlib.collections import PolyCollection

    known = [mhz for row in clocks for mhz in row.values() if mhz]
    low, high = (min(known), max(known)) if known else (0.0, 1.0)
    gap_px = min(2.0, column_px * 0.1)
    half, high_part = (1 - gap_px / column_px) / 2, (1 - gap_px / row_px) / 2
    boxes, faces, tooltips = [], [], []
    for stage in range(stages):
        for place, row in enumerate(clocks):
            mhz = row.get(stage, 0.0)
            tone = shade(mhz, low, high)
            x, y = (place - half, place + half), (stage - high_part, stage + high_part)
            boxes.append([(x[0], y[0]), (x[1], y[0]), (x[1], y[1]), (x[0], y[1])])
            faces.append(colour(tone) if mhz else COLOURS["lane"])
            tooltips.append(f"{names[place]} {stage}: " + (f"{mhz:,.0f} MHz" if mhz else "left alone"))
            if column_px > 34 and row_px > 11:
                style = {"fontsize": _SMALL, "color": ink(tone) if mhz else COLOURS["soft"]}
                text = f"{mhz:.0f}" if mhz else "–"
                axes.text(place, stage, text, ha="center", va="center_baseline", **style)
    axes.add_collection(PolyCollection(boxes, facecolors=faces, edgecolors="none", gid="clocks"))
    axes.grid(visible=False)
    axes.set_xticks([])
    shown = range(0, stages, 1 if row_px > 11 else 4)
    axes.set_yticks(shown, [str(stage) for stage in shown])
    axes.set_xlim(-0.5, len(clocks) - 0.5)
    axes.set_ylim(stages - 0.5, -0.5)
    return tooltips


def _add_values(
    axes: Any, values: Sequence[tuple[float | None, float | None]], unit: float, name: str
) -> dict[str, list[str]]:
    """Adds measured and predicted values, one column per schedule; returns their tooltips."""
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
        points = [(place, pair[position]) for place, pair in enumerate(values) if pair[position] is not None]
        if points:
            if kind == "measured":
                axes.plot(*zip(*points, strict=True), color=COLOURS["accent"], linewidth=1, alpha=0.45)
            axes.plot(*zip(*points, strict=True), linestyle="none", gid=f"{name}-{kind}", **style)
            tooltips[f"{name}-{kind}"] = [f"{kind}: {value / unit:.4g}" for _, value in points if value is not None]
    return tooltips


def _add_steps(axes: Any, windows: Sequence[Window], every: int, narrow: bool) -> None:
    """Writes number and first step of the schedules below a panel."""
    from matplotlib.transforms import ScaledTranslation, blended_transform_factory

    def below(x: float, text: str, down_px: float, strong: bool, side: str) -> None:
        anchor = axes.transData if side == "center" else axes.transAxes
        shift = ScaledTranslation((0 if side == "center" else -6) / 72, -down_px / 72, axes.figure.dpi_scale_trans)
        place = blended_transform_factory(anchor, axes.transAxes) + shift
        axes.text(x, 0, text, ha=side, va="baseline", transform=place, **_style(strong))

    for place in range(0, len(windows), every):
        below(place, str(windows[place].number), 16, True, "center")
        below(place, str(windows[place].index.start_step), 31, False, "center")
    below(0, "no." if narrow else "schedule", 16, True, "right")
    below(0, "step" if narrow else "from step", 31, False, "right")


def _add_stragglers(
    figure: Any, windows: Sequence[Window], columns: tuple[float, float], rows: tuple[float, float]
) -> None:
    """Draws a frame around the schedules that were made for a straggler's pace."""
    from matplotlib.patches import Rectangle

    width, height = (size * 72 for size in figure.get_size_inches())
    (left, column_px), (top, bottom) = columns, rows
    for place, window in enumerate(windows):
        inputs = window.index.source.plan_inputs
        if not inputs.slow_pipelines and inputs.straggler is None:
            continue
        x = left + place * column_px
        box = (x - 1) / width, 1 - bottom / height
        size = column_px / width, (bottom - top) / height
        style: dict[str, Any] = {"facecolor": "none", "edgecolor": COLOURS["warn"], "linewidth": 1.8}
        figure.add_artist(Rectangle(box, *size, transform=figure.transFigure, **style))
        middle, above = (x + column_px / 2) / width, 1 - (top - 4) / height
        label = {"ha": "center", "fontsize": _LABEL, "fontweight": "bold", "color": COLOURS["warn"]}
        figure.text(middle, above, "straggler", **label)
