"""The pipeline of a plan over time as a file, for `pfo-fs plan`. matplotlib draws; it is imported when it is needed."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pfo_fs.errors import ConfigError
from pfo_fs.planner import Plan
from pfo_fs.reports.pictures import height_of
from pfo_fs.reports.svg import SCALE, Bounds, ink, shade
from pfo_fs.reports.timeline import Laid

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_ROW_WIDTH_IN = 18.0
_BOXES_PER_INCH = 3.2
"""With this many instructions of a rank per inch, there is room for their micro-batch's number."""
_MOST_ROWS = 12
_DPI = 130
_TEXT, _SOFT, _LINE, _LANE, _PATH = "#17202b", "#5a6675", "#d9dee5", "#e3e7ed", "#b3341c"
_OPTIONS = {
    "svg.fonttype": "none",
    "svg.hashsalt": "pfo-fs",  # the same picture is always the same file
    "text.parse_math": False,  # names come from files; a "$" in one does not begin a formula
    "font.size": 12,
    "text.color": _TEXT,
    "axes.labelcolor": _SOFT,
    "axes.edgecolor": _LINE,
    "axes.facecolor": _LANE,
    "xtick.color": _SOFT,
    "ytick.color": _SOFT,
    "xtick.labelsize": 11.5,
    "ytick.labelsize": 11.5,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "path.simplify": False,
}


def draw_pipeline(plan: Plan, path: str | os.PathLike[str]) -> None:
    """Draws what every rank runs when, coloured by power, with a critical path; long iterations take several rows.

    Raises:
        ConfigError: The picture cannot be written there, or its name is none of `.png`, `.svg` and `.pdf`.
    """
    import matplotlib
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import ListedColormap, Normalize
    from matplotlib.figure import Figure

    pipeline, ranks = plan.problem.pipeline, len(plan.problem.pipeline.orders)
    powers = [m.energy_j / m.time_s for m in plan.measurements]
    bounds = min(plan.problem.blocking_power_w, *powers), max(powers)
    laid = Laid(pipeline, plan.timing.starts_s, plan.times_s, plan.frequencies_mhz, powers)
    longest = max(len(order) for order in pipeline.orders)
    rows = min(_MOST_ROWS, max(1, math.ceil(longest / (_ROW_WIDTH_IN * _BOXES_PER_INCH))))
    row_s = plan.iteration_time_s / rows
    with matplotlib.rc_context(_OPTIONS):
        size = _ROW_WIDTH_IN, rows * max(1.4, 0.32 * ranks + 0.5) + 1.2
        figure = Figure(figsize=size, layout="constrained")
        all_axes: list[Axes] = list(figure.subplots(rows, 1, squeeze=False)[:, 0])
        numbered = longest / rows <= 1.6 * _ROW_WIDTH_IN * _BOXES_PER_INCH
        for row, axes in enumerate(all_axes):
            _add_boxes(axes, laid, powers, bounds)
            axes.set_xlim(row * row_s, (row + 1) * row_s)
            axes.set_ylim(ranks - 0.5, -0.5)
            _add_critical_path(axes, plan, laid)
            if numbered:
                _add_numbers(axes, laid, bounds, (row * row_s, (row + 1) * row_s))
            axes.set_yticks(range(ranks))
            axes.set_ylabel("rank" if ranks != pipeline.num_stages else "stage")
        all_axes[-1].set_xlabel(
            "time (s); boxes carry their micro-batch; tall: backwards, middle: forwards, low: weight gradients; "
            "red: a critical path; empty: waiting"
        )
        mappable = ScalarMappable(Normalize(*bounds), ListedColormap(SCALE))
        figure.colorbar(mappable, ax=all_axes, label="power of a GPU (W)", pad=0.01, aspect=40)
        figure.suptitle(
            f"{pipeline.name}, {ranks} ranks x {pipeline.num_microbatches} micro-batches: "
            f"{plan.iteration_time_s:.4g} s, {plan.energy_j:,.0f} J{plan.gap_text}",
            fontsize=13,
        )
        date = {".svg": "Date", ".pdf": "CreationDate"}.get(Path(path).suffix)
        try:
            figure.savefig(path, dpi=_DPI, metadata={date: None} if date else None)
        except (OSError, ValueError) as error:
            raise ConfigError(f"{path}: cannot be written: {getattr(error, 'strerror', None) or error}") from error


def _add_boxes(axes: Axes, laid: Laid, powers_w: Sequence[float], bounds: Bounds) -> None:
    from matplotlib.collections import PolyCollection

    corners, faces = [], []
    for rank, nodes in enumerate(laid.rows()):
        for node in nodes:
            left, half = laid.starts_s[node], height_of(laid.pipeline.instructions[node].name) / 2
            right, low, high = left + laid.times_s[node], rank - half, rank + half
            corners.append([(left, low), (right, low), (right, high), (left, high)])
            faces.append(SCALE[shade(powers_w[node], bounds)])
    axes.add_collection(PolyCollection(corners, facecolors=faces, edgecolors=_TEXT, linewidth=0.3), autolim=False)


def _add_critical_path(axes: Axes, plan: Plan, laid: Laid) -> None:
    rank_of = {node: rank for rank, nodes in enumerate(laid.rows()) for node in nodes}
    points = [
        (laid.starts_s[node] + part * laid.times_s[node], rank_of[node]) for node in plan.critical for part in (0, 1)
    ]
    axes.plot(*zip(*points, strict=True), color=_PATH, linewidth=1.8, alpha=0.85)


def _add_numbers(axes: Axes, laid: Laid, bounds: Bounds, window_s: tuple[float, float]) -> None:
    """Writes the micro-batch's number on each box that has room for it."""
    begin_s, end_s = window_s
    staged = any(len({laid.pipeline.instructions[node].stage for node in nodes}) > 1 for nodes in laid.rows())
    least_s = (0.7 if staged else 0.35) * (end_s - begin_s) / (_ROW_WIDTH_IN * _BOXES_PER_INCH)
    for rank, nodes in enumerate(laid.rows()):
        for node in nodes:
            start_s, time_s = laid.starts_s[node], laid.times_s[node]
            if start_s + time_s <= begin_s or start_s >= end_s or time_s <= least_s:
                continue
            instruction = laid.pipeline.instructions[node]
            axes.text(
                start_s + time_s / 2,
                rank,
                (f"{instruction.stage}:" if staged else "") + str(instruction.microbatch),
                ha="center",
                va="center",
                fontsize=6,
                color=ink(shade(laid.powers_w[node], bounds)),
                clip_on=True,
                zorder=4,
            ).set_in_layout(False)  # in the layout, a thousand of them would take seconds
