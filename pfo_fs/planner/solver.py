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
