"""Plans that were in force and measured, and how much of what was measured is real."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass

from pfo_fs.planner import Plan

_USUALLY, _SELDOM, _SELDOM_SHARE = 0.0006, 0.01, 0.2
"""Relative: how far measured iterations usually are from what the model makes of the measured instructions, and how far
in this share of jobs: where durations scatter, or clocks do not follow the device, clocks act at other moments than
planned."""

_MODEL_OF_ALL, _MODEL_OF_ONE = 0.02, 0.005
"""The savings that the model promises are off by about the first number for all plans of a job, and by the second one
for a single plan."""


@dataclass
class Trial:
    """A plan that was in force, and what was measured under it.

    Attributes:
        plan: The plan.
        off: How far it is from the target, relative; the mean over its windows.
        saved: Energy that it saves, relative; 0 if energy is not known.
        saved_error: Standard error of it.
        windows: Number of windows.
        exploring: Whether it was in force only to measure clocks.
        early: Whether it was in force only before the last profiling windows, while its clocks were new.
        simple: Whether each stage runs at one clock.
        repeated: Whether it was put in force a second time.
        whole: Time of its iterations, as a multiple of that on the first stage, whose iteration times are watched; the
            mean over its windows.
    """

    plan: Plan
    off: float = 0.0
    saved: float = 0.0
    saved_error: float = 0.0
    windows: int = 0
    exploring: bool = False
    early: bool = False
    simple: bool = False
    repeated: bool = False
    whole: float = 1.0

    def repeat(self) -> None:
        """Forgets what was measured: the plan is put in force once more."""
        self.off, self.saved, self.saved_error, self.windows, self.repeated = 0.0, 0.0, 0.0, 0, True

    def add(self, off: float, saved: float, saved_error: float = 0.0, whole: float = 1.0) -> None:
        """Adds a window."""
        self.windows += 1
        self.whole += (whole - self.whole) / self.windows
        self.saved_error = math.hypot((self.windows - 1) * self.saved_error, saved_error) / self.windows
        self.off += (off - self.off) / self.windows
        self.saved += (saved - self.saved) / self.windows


def believed_savings(promised: Sequence[float], trials: Sequence[Trial]) -> list[float]:
    """Returns what each of some plans is believed to save, by what was measured and what the model promises.

    A window of short iterations holds few ticks of the energy counter, so that measured savings can be wrong by several
    percent. The model is wrong too, but for all plans of a job in about the same way.

    Args:
        promised: What each plan saves by the model, relative.
        trials: What was measured under each.
    """
    off = [trial.saved - by_model for trial, by_model in zip(trials, promised, strict=True)]
    weights = [1 / (trial.saved_error**2 + _MODEL_OF_ONE**2) for trial in trials]
    shared = sum(map(operator.mul, weights, off)) / (sum(weights) + 1 / _MODEL_OF_ALL**2)
    return [
        by_model + shared + _MODEL_OF_ONE**2 * weight * (one - shared)
        for by_model, weight, one in zip(promised, weights, off, strict=True)
    ]


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
