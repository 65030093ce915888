"""Measured time and power of each instruction over the clock, by stage: points with errors, and the planned curve."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pfo_fs.autotune.job_layout import Kind
from pfo_fs.autotune.samples import Point
from pfo_fs.planner import Profile
from pfo_fs.reports.figures import COLOURS, SERIES, drawing, fit, page_axes, page_figure, set_ticks, set_title, svg_of

_WIDTH, _PANEL = 300.0, 150.0
_CAPTIONS = {"time": "time (ms) over clock (MHz)", "power": "power of a GPU (W) over clock (MHz)"}


def profile_svg(
    stage: int, curves: Mapping[str, Mapping[int, Point]], planned: Profile | None, names: Sequence[str]
) -> str:
    """Returns time and power of one stage's instructions over the clock.

    Args:
        stage: The stage.
        curves: The measured points by instruction and clock.
        planned: The profile that the planner uses; None if there is none.
        names: All instructions of the job, in the order of their colours.
    """
    with drawing(f"stage {stage}"):
        figure = page_figure(_WIDTH, 2 * _PANEL)
        tooltips: dict[str, list[str]] = {}
        for row, what in enumerate(("time", "power")):
            axes = page_axes(figure, 40, row * _PANEL + 16, 292, row * _PANEL + 126)
            set_title(axes, _CAPTIONS[what])
            tooltips |= _add_curves(axes, stage, curves, planned, names, what)
        return svg_of(figure, f"Stage {stage}: time (ms) and power (W) over the clock (MHz)", tooltips)


def _add_curves(
    axes: Any,
    stage: int,
    curves: Mapping[str, Mapping[int, Point]],
    planned: Profile | None,
    names: Sequence[str],
    what: str,
) -> dict[str, list[str]]:
    unit, unit_name = (1e-3, "ms") if what == "time" else (1.0, "W")
    tooltips, extremes = {}, [0.0]
    clocks = [mhz for curve in curves.values() for mhz in curve]
    for name, curve in curves.items():
        colour = COLOURS[SERIES[names.index(name) % len(SERIES)]]
        rows = planned.measurements.get((stage, name), ()) if planned is not None else ()
        line = [
            (m.frequency_mhz, m.time_s if what == "time" else m.energy_j / m.time_s)
            for m in rows
            if min(clocks) <= m.frequency_mhz <= max(clocks)
        ]
        if line:  # it must lie within the limits: pictures are not clipped
            axes.plot(*zip(*line, strict=True), color=colour, linewidth=1.2, alpha=0.7)
            extremes += [value for _, value in line]
        values = {mhz: p.time_s if what == "time" else p.power_w for mhz, p in curve.items()}
        errors = [values[mhz] * (p.time_error if what == "time" else p.power_error) for mhz, p in curve.items()]
        lows = [value - error for value, error in zip(values.values(), errors, strict=True)]
        highs = [value + error for value, error in zip(values.values(), errors, strict=True)]
        axes.errorbar(list(values), list(values.values()), errors, fmt="none", ecolor=colour, elinewidth=1.2)
        gid = f"{what}{names.index(name)}"
        axes.plot(list(values), list(values.values()), "o", color=colour, markersize=4.8, markeredgewidth=0, gid=gid)
        tooltips[gid] = [
            f"{name} at {mhz} MHz: {value / unit:.4g} ± {error / unit:.2g} {unit_name}, {curve[mhz].count} runs"
            for (mhz, value), error in zip(values.items(), errors, strict=True)
        ]
        extremes += [*lows, *highs]
    fit(axes, clocks, extremes, 0.04, 0.02)
    set_ticks(axes.xaxis, 4)
    set_ticks(axes.yaxis, 4, unit)
    return tooltips


def by_stage(points: Mapping[Kind, Mapping[int, Point]]) -> dict[int, dict[str, Mapping[int, Point]]]:
    """Returns the points of a profile by stage and instruction."""
    found: dict[int, dict[str, Mapping[int, Point]]] = {}
    for (stage, name), curve in points.items():
        found.setdefault(stage, {})[name] = curve
    return found
