"""Energy over iteration time, for the plans of `pfo-fs plan`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from pfo_fs.planner import Plan
from pfo_fs.reports.figures import (
    COLOURS,
    drawing,
    fit,
    new_figure,
    save,
    set_ticks,
)

Points = Sequence[tuple[float, float]]
"""(iteration time in s, energy in J) of each point."""

_MANY = 40
"""A curve with this many points or more has no markers."""
_TIME, _ENERGY = "time of an iteration (s)", "energy of an iteration (kJ)"


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
    axes.plot(times, energies, color=COLOURS["accent"], marker=marker, markersize=6, linestyle="none")
