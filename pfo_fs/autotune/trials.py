"""Plans that were in force and measured, and how much of what was measured is real."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pfo_fs.planner import Plan

_USUALLY, _SELDOM, _SELDOM_SHARE = 0.0006, 0.01, 0.2
"""Relative: how far measured iterations usually are from what the model makes of the measured instructions, and how far
in this share of jobs: where durations scatter, or clocks do not follow the device, clocks act at other moments than
planned."""


@dataclass
class Trial:
    """A plan that was in force, and what was measured under it.

    Attributes:
        plan: The plan.
        off: How far it is from the target, relative; the mean over its windows.
        saved: Energy that it saves, relative; 0 if energy is not known.
        windows: Number of windows.
        exploring: Whether it was in force only to measure clocks.
        simple: Whether each stage runs at one clock.
        repeated: Whether it was put in force a second time.
    """

    plan: Plan
    off: float = 0.0
    saved: float = 0.0
    windows: int = 0
    exploring: bool = False
    simple: bool = False
    repeated: bool = False

    def repeat(self) -> None:
        """Forgets what was measured: the plan is put in force once more."""
        self.off, self.saved, self.windows, self.repeated = 0.0, 0.0, 0, True

    def add(self, off: float, saved: float) -> None:
        """Adds a window."""
        self.windows += 1
        self.off += (off - self.off) / self.windows
        self.saved += (saved - self.saved) / self.windows


def expected_difference(measured: float, variance: float) -> float:
    """Returns the expected real difference between measured and predicted iterations, relative.

    Real differences are nearly always small and seldom large (a mixture of two normal distributions). So most of a
    small measured difference counts as noise, and all of one that noise does not explain as real.

    Args:
        measured: The measured difference, relative.
        variance: The variance of its noise.
    """
    total, real = 0.0, 0.0
    for share, deviation in ((1 - _SELDOM_SHARE, _USUALLY), (_SELDOM_SHARE, _SELDOM)):
        both = deviation**2 + variance
        likelihood = share * math.exp(-0.5 * measured**2 / both) / math.sqrt(both)
        total += likelihood
        real += likelihood * deviation**2 / both
    return measured * (real / total if total else 1.0)
