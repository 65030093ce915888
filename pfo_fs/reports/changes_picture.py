"""Saving against the number of clock changes of an iteration, for `pfo-fs plan`."""

from __future__ import annotations

import os
from collections.abc import Sequence

from pfo_fs.planner import Plan
from pfo_fs.reports.figures import COLOURS, drawing, new_figure, save


def draw_changes(maximum: Plan, plans: Sequence[Plan], path: str | os.PathLike[str]) -> None:
    """Writes a PNG with the saving of plans, and the most that any plan with so many changes can save.

    Args:
        maximum: The plan that savings are relative to.
        plans: Plans by rising number of changes.
        path: The file.
    """
    counts = [len(plan.changes) for plan in plans]
    savings = [100 * (1 - plan.energy_j / maximum.energy_j) for plan in plans]
    bounds = [
        (count, 100 * (1 - plan.lower_bound_j / maximum.energy_j))
        for count, plan in zip(counts, plans, strict=True)
        if plan.lower_bound_j is not None
    ]
    with drawing():
        figure = new_figure(9.0, 6.0)
        axes = figure.subplots()
        axes.spines[:].set_visible(False)
        if bounds:
            # Without a line: between two of these points, the limit lies above their connection.
            style = {"color": COLOURS["soft"], "linestyle": "none", "marker": "_", "markersize": 14}
            axes.plot(*zip(*bounds, strict=True), label="no plan with so many changes saves more", **style)
        axes.plot(counts, savings, marker="o", color=COLOURS["accent"], linewidth=2.2, label="plans found")
        axes.set_xlabel("clock changes of an iteration, all ranks together")
        axes.set_ylabel("energy saved (%)")
        axes.set_ylim(bottom=0)
        axes.legend(frameon=False, loc="lower right")
        save(figure, path)
