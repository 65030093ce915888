"""The instructions of a pipeline over time: on the page with zoom, and as a file beside a plan."""

from __future__ import annotations

import math
import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pfo_fs.planner import Plan
from pfo_fs.reports.figures import (
    COLOURS,
    SHADES,
    colour,
    drawing,
    ink,
    new_figure,
    page_axes,
    page_figure,
    save,
    shade,
    svg_of,
)
from pfo_fs.reports.timeline import Laid

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ROW_PX = 24.0
"""Height of a rank on the page."""
PIPELINE_WIDTH = 10_000.0
"""Units of the page's picture from the begin of the longest iteration to its end; the script zooms in them."""
_ROW_WIDTH_IN = 18.0
_BOXES_PER_INCH = 3.2
"""With this many instructions of a rank per inch, there is room for their micro-batch's number."""
_MOST_ROWS = 12
_HEIGHT = {"forward": 0.62, "recomputation": 0.62, "backward_weight": 0.4}

Bounds = tuple[float, float]
"""The lowest and the highest value of a colour scale."""


def height_of(instruction: str) -> float:
    """Returns the part of a row's height that an instruction fills, which shows its kind without colour."""
    return _HEIGHT.get(instruction, 0.92)


def pipeline_svg(title: str, laid: Laid, length_s: float, scales: Mapping[str, Bounds]) -> str:
    """Returns one iteration for the page: only the boxes, once for each colour scale.

    Args:
        length_s: The time that the width shows, in s.
        scales: For `clock` (MHz) and `power` (W), the bounds of their colours.
    """
    ranks = len(laid.rows())
    with drawing(title):
        figure = page_figure(PIPELINE_WIDTH, ranks * ROW_PX)
        axes = page_axes(figure, 0, 0, PIPELINE_WIDTH, ranks * ROW_PX)
        axes.set_axis_off()
        _limits(axes, 0.0, length_s, ranks)
        classes: dict[str, str] = {}
        for kind, bounds in scales.items():
            values = laid.clocks_mhz if kind == "clock" else laid.powers_w
            classes |= dict.fromkeys(_add_boxes(axes, laid, values, bounds, kind), f"layer {kind}")
        svg = svg_of(figure, title, classes=classes)
    return svg.replace("<svg ", f'<svg preserveAspectRatio="none" style="height:{ranks * ROW_PX:g}px" ', 1)


def _limits(axes: Axes, begin_s: float, end_s: float, ranks: int) -> None:
    axes.set_xlim(begin_s, end_s)
    axes.set_ylim(ranks - 0.5, -0.5)


def _add_boxes(
    axes: Axes, laid: Laid, values: Sequence[float], bounds: Bounds, name: str, edge: str = "none"
) -> list[str]:
    """Adds a box per instruction; boxes of one shade are one path, which keeps files small. Returns the paths' gids."""
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    boxes: dict[int, list[list[tuple[float, float]]]] = defaultdict(list)
    for rank, nodes in enumerate(laid.rows()):
        for node in nodes:
            start_s, half = laid.starts_s[node], height_of(laid.pipeline.instructions[node].name) / 2
            end_s = start_s + laid.times_s[node]
            tone = shade(values[node], *bounds) if values[node] else -1
            boxes[tone].append(
                [(start_s, rank - half), (end_s, rank - half), (end_s, rank + half), (start_s, rank + half)]
            )
    gids = []
    for tone, polygons in sorted(boxes.items()):
        corners = [corner for polygon in polygons for corner in (*polygon, polygon[0])]
        codes = [Path.MOVETO, Path.LINETO, Path.LINETO, Path.LINETO, Path.CLOSEPOLY] * len(polygons)
        face = colour(tone) if tone >= 0 else COLOURS["lane"]
        gids.append(f"{name}-{tone}" if tone >= 0 else f"{name}-alone")
        axes.add_patch(PathPatch(Path(corners, codes), facecolor=face, edgecolor=edge, linewidth=0.3, gid=gids[-1]))
    return gids


def draw_pipeline(plan: Plan, path: str | os.PathLike[str]) -> None:
    """Draws what every rank runs when, coloured by power, with a critical path; long iterations take several rows."""
    pipeline, ranks = plan.problem.pipeline, len(plan.problem.pipeline.orders)
    powers = [m.energy_j / m.time_s for m in plan.measurements]
    bounds = min(plan.problem.blocking_power_w, *powers), max(powers)
    laid = Laid(pipeline, plan.timing.starts_s, plan.times_s, plan.frequencies_mhz, powers)
    longest = max(len(order) for order in pipeline.orders)
    rows = min(_MOST_ROWS, max(1, math.ceil(longest / (_ROW_WIDTH_IN * _BOXES_PER_INCH))))
    row_s = plan.iteration_time_s / rows
    with drawing():
        figure = new_figure(_ROW_WIDTH_IN, rows * max(1.4, 0.32 * ranks + 0.5) + 1.2)
        all_axes: list[Axes] = list(figure.subplots(rows, 1, squeeze=False)[:, 0])
        numbered = longest / rows <= 1.6 * _ROW_WIDTH_IN * _BOXES_PER_INCH
        for row, axes in enumerate(all_axes):
            axes.set_facecolor(COLOURS["lane"])
            axes.grid(visible=False)
            _add_boxes(axes, laid, powers, bounds, f"row{row}", edge=COLOURS["text"])
            _limits(axes, row * row_s, (row + 1) * row_s, ranks)
            _add_critical_path(axes, plan, laid)
            if numbered:
                _add_numbers(axes, laid, bounds, (row * row_s, (row + 1) * row_s))
            axes.set_yticks(range(ranks))
            axes.set_ylabel("rank" if ranks != pipeline.num_stages else "stage")
        all_axes[-1].set_xlabel(
            "time (s); boxes carry their micro-batch; tall: backwards, middle: forwards, low: weight gradients; "
            "red: a critical path; empty: waiting"
        )
        _add_colour_bar(figure, all_axes, bounds)
        figure.suptitle(_figures(plan), fontsize=13)
        save(figure, path)


def _add_critical_path(axes: Axes, plan: Plan, laid: Laid) -> None:
    rank_of = {node: rank for rank, nodes in enumerate(laid.rows()) for node in nodes}
    points = [
        (laid.starts_s[node] + part * laid.times_s[node], rank_of[node]) for node in plan.critical for part in (0, 1)
    ]
    axes.plot(*zip(*points, strict=True), color=COLOURS["bad"], linewidth=1.8, alpha=0.85)


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
                color=ink(shade(laid.powers_w[node], *bounds)),
                clip_on=True,
                zorder=4,
            ).set_in_layout(False)  # in the layout, a thousand of them would take seconds


def _add_colour_bar(figure: Figure, all_axes: Sequence[Axes], bounds: Bounds) -> None:
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import ListedColormap, Normalize

    colours = ListedColormap([colour(step) for step in range(SHADES)])
    figure.colorbar(
        ScalarMappable(Normalize(*bounds), colours), ax=all_axes, label="power of a GPU (W)", pad=0.01, aspect=40
    )


def _figures(plan: Plan) -> str:
    pipeline = plan.problem.pipeline
    return (
        f"{pipeline.name}, {len(pipeline.orders)} ranks x {pipeline.num_microbatches} micro-batches: "
        f"{plan.iteration_time_s:.4g} s, {plan.energy_j:,.0f} J{plan.gap_text}"
    )
