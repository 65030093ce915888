"""Saving against the number of clock changes of an iteration, for `pfo-fs plan` and the report page."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from pfo_fs.planner import Plan
from pfo_fs.reports.figures import COLOURS, drawing, fit, new_figure, page_axes, page_figure, save, set_ticks, svg_of

_CHANGES, _SAVED = "clock changes of an iteration, all ranks together", "energy saved (%)"


def saved_percent(maximum: Plan, energy_j: float) -> float:
    """Returns by how many percent an energy in J is below that of the plan that savings are relative to."""
    return 100 * (1 - energy_j / maximum.energy_j)


def draw_changes(maximum: Plan, plans: Sequence[Plan], path: str | os.PathLike[str]) -> None:
    """Writes a PNG with the saving of plans, and the most that any plan with so many changes can save.

    Args:
        maximum: The plan that savings are relative to.
        plans: Plans by rising number of changes.
        path: The file.
    """
    with drawing():
        figure = new_figure(9.0, 6.0)
        axes = figure.subplots()
        axes.spines[:].set_visible(False)
        _add(axes, maximum, plans)
        axes.set_ylim(bottom=0)
        axes.legend(frameon=False, loc="lower right")
        save(figure, path)


def changes_svg(maximum: Plan, plans: Sequence[Plan], width: float, kind: str) -> str:
    """Returns the same picture for the page.

    Args:
        maximum: The plan that savings are relative to.
        plans: Plans by rising number of changes; one at least.
        width: Width in pixels.
        kind: `wide` or `narrow`.
    """
    narrow = kind == "narrow"
    height = 240.0 if narrow else 320.0
    with drawing(f"changes {kind}"):
        figure = page_figure(width, height)
        axes = page_axes(figure, 44 if narrow else 60, 14, width - (10 if narrow else 24), height - 48)
        bounds = _add(axes, maximum, plans)
        savings = [saved_percent(maximum, plan.energy_j) for plan in plans]
        fit(axes, [len(plan.changes) for plan in plans], [0.0, *savings, *bounds])
        set_ticks(axes.xaxis, 4 if narrow else 8)
        set_ticks(axes.yaxis, 5)
        tooltips = {
            "changes": [
                f"{len(plan.changes)} changes: {saved:.1f} % saved" for plan, saved in zip(plans, savings, strict=True)
            ]
        }
        return svg_of(figure, "Energy saved over the number of clock changes", kind, tooltips)


def _add(axes: Any, maximum: Plan, plans: Sequence[Plan]) -> list[float]:
    """Draws the plans and their bounds; returns the bounds as savings in percent."""
    bounded = [plan for plan in plans if plan.lower_bound_j is not None]
    bounds = [saved_percent(maximum, plan.lower_bound_j or 0.0) for plan in bounded]
    if bounds:
        # Without a line: between two of these points, the limit lies above their connection.
        style = {"color": COLOURS["soft"], "linestyle": "none", "marker": "_", "markersize": 14}
        label = "no plan with so many changes saves more"
        axes.plot([len(plan.changes) for plan in bounded], bounds, label=label, **style)
    counts, savings = zip(*((len(plan.changes), saved_percent(maximum, plan.energy_j)) for plan in plans), strict=True)
    axes.plot(counts, savings, marker="o", color=COLOURS["accent"], linewidth=2.2, label="plans found")
    axes.plot(counts, savings, marker="o", color=COLOURS["accent"], linestyle="none", gid="changes")
    axes.set_xlabel(_CHANGES)
    axes.set_ylabel(_SAVED)
    return bounds
