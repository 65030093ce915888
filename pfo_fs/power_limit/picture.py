"""Time and energy over power limits or clocks, as a picture. matplotlib is imported inside the function."""

from __future__ import annotations

import os
from collections.abc import Sequence

from pfo_fs.errors import ConfigError
from pfo_fs.power_limit.measurements import KnobMeasurement

_TIME, _ENERGY = "#0072B2", "#D55E00"


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
        ConfigError: matplotlib is not installed, or the picture cannot be written.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError("pictures need matplotlib: pip install matplotlib") from error
    figure = Figure(figsize=(8.0, 6.0), layout="constrained")
    FigureCanvasAgg(figure)
    upper, lower = figure.subplots(2, 1, sharex=True)
    knob, mhz_or_w = measurements[0].knob, measurements[0].unit
    ordered = sorted(measurements, key=lambda m: m.level)
    levels = [m.level for m in ordered]
    chosen = next(m for m in ordered if m.level == chosen_level)
    for axes, what, values, unit, colour, value in (
        (upper, "time", [m.time for m in ordered], "s", _TIME, chosen.time),
        (lower, "energy of all GPUs", [m.energy for m in ordered], "J", _ENERGY, chosen.energy),
    ):
        axes.plot(levels, values, color=colour, marker="o", markersize=4, linewidth=2)
        axes.axvline(chosen_level, color="black", linestyle=":", linewidth=1)
        axes.plot([chosen_level], [value], marker="o", markersize=11, markerfacecolor="none", markeredgecolor="black")
        change = f"{value / values[-1] - 1:+.1%} against {levels[-1]} {mhz_or_w}"
        axes.set_title(f"{what} at {chosen_level} {mhz_or_w}: {value:,.4g} {unit}, {change}", loc="left", fontsize=10)
        axes.set_ylabel(f"{what} ({unit})")
        axes.grid(alpha=0.3)
    if longest_s is not None:
        upper.axhline(longest_s, color="grey", linestyle="--", linewidth=1, label="longest time allowed")
        upper.legend(loc="upper center", facecolor="white", framealpha=1, edgecolor="none")
    lower.set_xlabel(f"{knob.replace('_', ' ')} ({mhz_or_w})")
    figure.suptitle(title, fontsize=11)
    try:
        figure.savefig(path, dpi=130)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be written: {error}") from error
