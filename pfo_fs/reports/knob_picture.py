"""Time and energy over power limits or clocks, for `pfo-fs power-limit`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pfo_fs.reports.figures import COLOURS, drawing, new_figure, save

if TYPE_CHECKING:
    from pfo_fs.power_limit.measurements import KnobMeasurement


def draw_profile(
    measurements: Sequence[KnobMeasurement],
    chosen_level: int,
    path: str | os.PathLike[str],
    *,
    title: str = "",
    longest_s: float | None = None,
) -> None:
    """Draws time and energy of a measured window, one above the other, with the chosen level.

    Args:
        measurements: One per level; at least one.
        chosen_level: The chosen level.
        path: The picture, `.png`, `.svg` or `.pdf`.
        title: The picture's title.
        longest_s: The longest time allowed, in s; None without a limit.

    Raises:
        ConfigError: The picture cannot be written.
    """
    knob, unit = measurements[0].knob, measurements[0].unit
    ordered = sorted(measurements, key=lambda m: m.level)
    levels = [m.level for m in ordered]
    chosen = next(m for m in ordered if m.level == chosen_level)
    with drawing():
        figure = new_figure(8.0, 6.0)
        upper, lower = figure.subplots(2, 1, sharex=True)
        for axes, what, values, in_unit, colour, value in (
            (upper, "time", [m.time for m in ordered], "s", COLOURS["accent"], chosen.time),
            (lower, "energy of all GPUs", [m.energy for m in ordered], "J", COLOURS["s0"], chosen.energy),
        ):
            axes.plot(levels, values, color=colour, marker="o", markersize=4, linewidth=2)
            axes.axvline(chosen_level, color=COLOURS["text"], linestyle=":", linewidth=1)
            axes.plot([chosen_level], [value], "o", markersize=11, fillstyle="none", color=COLOURS["text"])
            change = f"{value / values[-1] - 1:+.1%} against {levels[-1]} {unit}"
            axes.set_title(
                f"{what} at {chosen_level} {unit}: {value:,.4g} {in_unit}, {change}", loc="left", fontsize=10
            )
            axes.set_ylabel(f"{what} ({in_unit})")
        if longest_s is not None:
            upper.axhline(longest_s, color=COLOURS["soft"], linestyle="--", linewidth=1, label="longest time allowed")
            upper.legend(loc="upper center", edgecolor="none")
        lower.set_xlabel(f"{knob.replace('_', ' ')} ({unit})")
        figure.suptitle(title, fontsize=11)
        save(figure, path)
