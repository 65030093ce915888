"""Energy over iteration time: for the report page of a job, and for the plans of `pfo-fs plan`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pfo_fs.planner import Plan
from pfo_fs.reports.figures import (
    COLOURS,
    WIDTH,
    drawing,
    fit,
    new_figure,
    page_axes,
    page_figure,
    save,
    set_ticks,
    svg_of,
)
from pfo_fs.reports.forecast import Curve

Points = Sequence[tuple[float, float]]
"""(iteration time in s, energy in J) of each point."""

_MANY = 40
"""A curve with this many points or more has no markers."""
_TIME, _ENERGY = "time of an iteration (s)", "energy of an iteration (kJ)"


@dataclass(frozen=True)
class Dot:
    """One point beside the frontier.

    Attributes:
        time_s: Iteration time, in s.
        energy_j: Energy of an iteration, in J.
        kind: `maximum`, `now` or `other`.
        name: Text of the tooltip.
        label: Text beside the point; empty for none.
        predicted: Whether the point was predicted, not measured; such points are drawn hollow.
    """

    time_s: float
    energy_j: float
    kind: str
    name: str
    label: str = ""
    predicted: bool = False


def frontier_svg(curve: Curve | None, dots: Sequence[Dot]) -> str:
    """Returns the frontier of a job for the page: plans, their lower bound, and where the job was.

    Args:
        curve: The frontier; None if there is no model.
        dots: What was measured and predicted. Dots of kind `other` are left out if they lie outside the rest.
    """
    with drawing("frontier"):
        figure = page_figure(WIDTH, 420.0)
        axes = page_axes(figure, 76, 16, WIDTH - 24, 368)
        line = [*curve.planned, *curve.bound] if curve is not None else []
        main = [(dot.time_s, dot.energy_j) for dot in dots if dot.kind != "other"]
        shown = line + main or [(dot.time_s, dot.energy_j) for dot in dots]
        fit(axes, [t for t, _ in shown], [e for _, e in shown])
        tooltips = {}
        if curve is not None:
            _curve(axes, curve.planned, curve.bound)
            if len(curve.planned) < _MANY:
                tooltips["planned"] = [f"planned: {t:.4g} s, {e:,.0f} J" for t, e in curve.planned]
        (left, right), (low, high) = axes.get_xlim(), axes.get_ylim()
        for number, dot in enumerate(dots):
            if left <= dot.time_s <= right and low <= dot.energy_j <= high:
                _dot(axes, dot, f"dot{number}", (left + right) / 2)
                tooltips[f"dot{number}"] = [f"{dot.name}: {dot.time_s:.4g} s, {dot.energy_j:,.0f} J"]
        _label(axes, _ENERGY)
        return svg_of(figure, "Energy of an iteration over its time", tooltips)


def draw_frontier(
    plans: Sequence[Plan], path: str | os.PathLike[str], others: Sequence[Sequence[Plan]] = (), title: str = ""
) -> None:
    """Draws plans, their lower bound, and plans of other solvers for the same problem into a file.

    Args:
        plans: Plans of one problem.
        path: The picture, `.png`, `.svg` or `.pdf`.
        others: Plans of each other solver: drawn as a curve, or a single plan as a point, with the solver's name.
        title: The picture's title.
    """
    with drawing():
        figure = new_figure(9.0, 6.0)
        axes = figure.subplots()
        bound = sorted((plan.deadline_s, plan.lower_bound_j) for plan in plans if plan.lower_bound_j is not None)
        shown = [*bound, *(point for curve in (plans, *others) for point in _points(curve))]
        fit(axes, [time_s for time_s, _ in shown], [energy_j for _, energy_j in shown])
        _curve(axes, _points(plans), bound)
        axes.spines[:].set_visible(False)
        for name, marker, curve in zip(("bad", "s3", "good", "soft"), "sDP^", others, strict=False):
            points = _points(curve)
            alone = len(points) == 1
            axes.plot(
                *zip(*points, strict=True),
                color=COLOURS[name],
                marker=marker if len(points) < _MANY else None,
                markersize=8 if alone else 3,
                linestyle="none" if alone else "-",
                linewidth=1.5,
                label={"all-maximum": "max clocks"}.get(curve[0].solver, curve[0].solver.replace("-", " ")),
            )
        _label(axes, f"{_ENERGY[:-5]}, all GPUs of the pipeline (kJ)")
        axes.set_title(title)
        axes.legend(frameon=False)
        save(figure, path)


def _label(axes: Any, energy: str) -> None:
    set_ticks(axes.xaxis, 8)
    set_ticks(axes.yaxis, 6, 1e3)
    axes.set_xlabel(_TIME)
    axes.set_ylabel(energy)


def _points(plans: Sequence[Plan]) -> list[tuple[float, float]]:
    return sorted((plan.iteration_time_s, plan.energy_j) for plan in plans)


def _curve(axes: Any, planned: Points, bound: Points) -> None:
    """The plans, and the region below their lower bound, in which no plan can be."""
    if bound:
        times, energies = zip(*bound, strict=True)
        axes.fill_between(times, energies, axes.get_ylim()[0], color=COLOURS["impossible"], linewidth=0)
        style = {"color": COLOURS["soft"], "linestyle": "--", "linewidth": 1.3}
        axes.plot(times, energies, label="lower bound: no plan can be below", **style)
    times, energies = zip(*planned, strict=True)
    marker = "o" if len(planned) < _MANY else ""
    axes.plot(times, energies, color=COLOURS["accent"], linewidth=2.2, label="a clock per instruction")
    axes.plot(times, energies, color=COLOURS["accent"], marker=marker, markersize=6, linestyle="none", gid="planned")


def _dot(axes: Any, dot: Dot, gid: str, middle_s: float) -> None:
    colour = COLOURS[{"maximum": "bad", "now": "good", "other": "soft"}[dot.kind]]
    axes.plot(
        [dot.time_s],
        [dot.energy_j],
        marker="s" if dot.kind == "maximum" else "o",
        markersize=8 if dot.kind == "other" else 13,
        markerfacecolor=COLOURS["card"] if dot.predicted else colour,
        markeredgecolor=colour if dot.predicted else COLOURS["card"],
        markeredgewidth=2.2 if dot.predicted else 1.5,
        linestyle="none",
        gid=gid,
        zorder=4,
    )
    if dot.label:
        right = dot.time_s < middle_s
        axes.annotate(
            dot.label,
            (dot.time_s, dot.energy_j),
            (13 if right else -13, 0),
            textcoords="offset points",
            horizontalalignment="left" if right else "right",
            verticalalignment="center",
            fontsize=13,
            fontweight="bold",
            zorder=5,
        )
