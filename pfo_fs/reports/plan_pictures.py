"""Pictures: the frontier, and a pipeline over time. matplotlib is imported inside (`pip install 'pfo-fs[plot]'`)."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import Any

from pfo_fs.errors import ConfigError
from pfo_fs.planner.plan import Plan

_ROW_WIDTH_IN = 18.0
_BOXES_PER_INCH = 3.2
"""So many instructions of a rank side by side leave room for their micro-batch's number."""
_MAX_ROWS = 12
_HEIGHT = {"forward": 0.62, "recomputation": 0.62, "backward_weight": 0.36}
_DPI = 130


def draw_frontier(
    plans: Sequence[Plan], path: str | os.PathLike[str], others: Sequence[Sequence[Plan]] = (), title: str = ""
) -> None:
    """Draws energy over iteration time: the plans, their lower bound, and other means of the same problem.

    Args:
        plans: Plans of one problem.
        path: The picture, `.png`, `.svg` or `.pdf`.
        others: Each a curve, or with a single plan a point, named by its solver.
        title: Goes to the top.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    figure, axes = _figure(9.0, 6.0)
    ordered = sorted(plans, key=lambda plan: plan.iteration_time_s)
    times = [plan.iteration_time_s for plan in ordered]
    bounded = [plan for plan in ordered if plan.lower_bound_j is not None]
    if bounded:
        axes.plot(
            [plan.deadline_s for plan in bounded],
            [plan.lower_bound_j for plan in bounded],
            color="black",
            linestyle="--",
            linewidth=1,
            label="lower bound: no plan can be below",
        )
    marker = "o" if len(ordered) < 40 else None
    energies = [plan.energy_j for plan in ordered]
    axes.plot(
        times, energies, color="#0072B2", linewidth=2, marker=marker, markersize=3, label="a clock per instruction"
    )
    for colour, shape, curve in zip(("#D55E00", "#CC79A7", "#009E73", "#666666"), "DsP^", others, strict=False):
        points = sorted(curve, key=lambda plan: plan.iteration_time_s)
        axes.plot(
            [plan.iteration_time_s for plan in points],
            [plan.energy_j for plan in points],
            color=colour,
            marker=shape if len(points) < 40 else None,
            markersize=8 if len(points) == 1 else 3,
            linestyle="none" if len(points) == 1 else "-",
            linewidth=1.5,
            label=points[0].solver.replace("-", " ") if points else None,
        )
    axes.set_xlabel("iteration time (s)")
    axes.set_ylabel("energy of an iteration, all GPUs of the pipeline (J)")
    axes.set_title(title)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    _save(figure, path)


def draw_pipeline(plan: Plan, path: str | os.PathLike[str], title: str = "") -> None:
    """Draws when every rank runs what, coloured by power, with a critical path; long iterations take several rows.

    Args:
        plan: The plan.
        path: The picture, `.png`, `.svg` or `.pdf`.
        title: Goes to the top; without it, the plan's figures do.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    pipeline, starts = plan.problem.pipeline, plan.timing.starts_s
    length_s = plan.iteration_time_s
    ranks = len(pipeline.orders)
    longest = max(len(order) for order in pipeline.orders)
    rows = min(_MAX_ROWS, max(1, math.ceil(longest / (_ROW_WIDTH_IN * _BOXES_PER_INCH))))
    height_in = rows * max(1.4, 0.32 * ranks + 0.5) + 1.2
    figure, all_axes = _figure(_ROW_WIDTH_IN, height_in, rows)
    powers = [m.energy_j / m.time_s for m in plan.measurements]
    scale, colours = _power_colours(powers, plan.problem.blocking_power_w)
    row_s = length_s / rows
    rank_of = [rank for rank, order in enumerate(pipeline.orders) for _ in order]
    numbers = longest / rows <= 1.6 * _ROW_WIDTH_IN * _BOXES_PER_INCH
    critical = plan.critical
    from matplotlib.collections import PolyCollection

    for row, axes in enumerate(all_axes):
        begin, end = row * row_s, (row + 1) * row_s
        boxes, faces = [], []
        for node, start in enumerate(starts):
            stop = start + plan.times_s[node]
            if stop <= begin or start >= end:
                continue
            instruction = pipeline.instructions[node]
            height = _HEIGHT.get(instruction.name, 0.94)
            face = colours(scale(powers[node]))
            low, high = rank_of[node] - height / 2, rank_of[node] + height / 2
            boxes.append([(start, low), (stop, low), (stop, high), (start, high)])
            faces.append(face)
            if numbers and stop - start > 0.35 * row_s / (_ROW_WIDTH_IN * _BOXES_PER_INCH):
                dark = 0.3 * face[0] + 0.59 * face[1] + 0.11 * face[2] < 0.5
                axes.text(
                    (start + stop) / 2,
                    rank_of[node],
                    str(instruction.microbatch),
                    ha="center",
                    va="center",
                    fontsize=6,
                    color="white" if dark else "black",
                    clip_on=True,
                    zorder=4,
                ).set_in_layout(False)  # a thousand of them would take seconds to lay out around
        axes.add_collection(PolyCollection(boxes, facecolors=faces, edgecolors="black", linewidths=0.3))
        points = [(t, rank_of[n]) for n in critical for t in (starts[n], starts[n] + plan.times_s[n])]
        axes.plot(*zip(*points, strict=True), color="#00A651", linewidth=1.8, alpha=0.85)
        axes.set_xlim(begin, end)
        axes.set_ylim(ranks - 0.45, -0.55)
        axes.set_yticks(range(ranks))
        axes.set_ylabel("rank" if len(set(rank_of)) != pipeline.num_stages else "stage")
        axes.set_facecolor("#f2f2f2")
    all_axes[-1].set_xlabel(
        "time (s); boxes carry their micro-batch; tall: backwards, middle: forwards, low: weight gradients; "
        "green: a critical path; empty: waiting"
    )
    from matplotlib.cm import ScalarMappable

    figure.colorbar(ScalarMappable(scale, colours), ax=list(all_axes), label="power of a GPU (W)", pad=0.01, aspect=40)
    figure.suptitle(title or _figures(plan), fontsize=11)
    _save(figure, path)


def _figures(plan: Plan) -> str:
    gap = "" if plan.gap is None else f", at most {plan.gap:.2%} above the least possible"
    return (
        f"{plan.problem.pipeline.name}, {len(plan.problem.pipeline.orders)} ranks x "
        f"{plan.problem.pipeline.num_microbatches} micro-batches: {plan.iteration_time_s:.4g} s, "
        f"{plan.energy_j:,.0f} J{gap}"
    )


def _figure(width_in: float, height_in: float, rows: int = 0) -> tuple[Any, Any]:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError("pictures need matplotlib: pip install 'pfo-fs[plot]'") from error
    figure = Figure(figsize=(width_in, height_in), layout="constrained")
    FigureCanvasAgg(figure)
    if rows:
        return figure, figure.subplots(rows, 1, squeeze=False)[:, 0]
    return figure, figure.subplots()


def _power_colours(powers_w: Sequence[float], blocking_power_w: float) -> tuple[Any, Any]:
    from matplotlib import colormaps
    from matplotlib.colors import Normalize

    return Normalize(min(blocking_power_w, *powers_w), max(powers_w)), colormaps["YlOrRd"]


def _save(figure: Any, path: str | os.PathLike[str]) -> None:
    figure.savefig(path, dpi=_DPI)
