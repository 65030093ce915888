"""Makes HiGHS, which solves the planner's linear programs, without its output."""

from __future__ import annotations

from typing import Any


def silent_highs() -> Any:
    """Returns a new `highspy.Highs` that prints nothing.

    From release 1.16 on, HiGHS prints a banner to standard output when `Highs()` enables its callbacks, before its
    caller can set an option. Here the option is set earlier.
    """
    import highspy

    class SilentHighs(highspy.Highs):  # type: ignore[misc]  # highspy has no types in all releases
        def enableCallbacks(self) -> None:  # noqa: N802 - highspy's name
            self.setOptionValue("output_flag", False)
            super().enableCallbacks()

    highs = SilentHighs()
    highs.setOptionValue("output_flag", False)
    return highs


def use_interior_point(highs: Any, tolerance: float) -> None:
    """Lets HiGHS solve linear programs by its first interior point method, without a vertex at the end.

    Releases with several such methods call it IPX; of all of them, it fails least where clocks are nearly alike.

    Args:
        highs: What `silent_highs` returned.
        tolerance: The relative error that ends the solution.
    """
    import highspy

    if highs.setOptionValue("solver", "ipx") != highspy.HighsStatus.kOk:
        highs.setOptionValue("solver", "ipm")
    highs.setOptionValue("run_crossover", "off")
    highs.setOptionValue("ipm_optimality_tolerance", tolerance)
    highs.setOptionValue("kkt_tolerance", tolerance)
