"""How long instructions take at a load and a clock, learned from the steps so far.

    duration(kind, pipeline) = (a + b . load [+ c load^2]) * pace(kind, pipeline)
                               * (1 + s * (highest clock / clock - 1))

The square counts for loads of one number only; vectors bring what they need. s is between 0 (the instruction waits for
memory) and 1 (it follows the clock). A worker that is slow for good has another pace: that is no work. Coefficients are
and s are least squares over the latest steps, the paces in turn with them. A duration that was not measured is NaN.
"""

from __future__ import annotations

from collections import deque
from typing import Any

Array = Any
"""An array of numpy, which is not typed here."""

_STEPS = 60
"""So many of the latest steps count: data changes within hundreds of steps."""
_ROUNDS = 4
"""Coefficients and paces are estimated in turn; after this many rounds they change by less than their errors."""
_USUAL_S, _RUNS, _ASSUMED = 0.9, 30, 0.1
"""Before s is measured, instructions are taken to follow the clock nearly; that counts as 30 runs at a clock that makes
them a tenth longer."""
_ODD = 0.02
"""This share of the durations, those that are furthest off, may have been something else than work, such as a
checkpoint: it does not count."""
STALLED = 2.0
"""Slow workers of measured jobs take up to 1.4 times as long; what takes more than twice as long has stalled."""
_LEAST = 1e-3
"""Of the mean duration, no instruction is taken to last for less than this share."""


class LoadDurations:
    """The model of durations.

    Args:
        kinds: The number of each instruction's kind, (instructions,).

    Attributes:
        residual: What the loads do not explain of durations (standard deviation), relative to their mean; the mean
            over kinds; infinite before the first fit.
        explained: The share of the variance of durations that loads explain, mean over kinds.
        slope: s of each kind.
        pace: By how many times the instructions of a pipeline take as long as others of the kind, (kinds, pipelines).
    """

    def __init__(self, kinds: Array) -> None:
        import numpy as np

        self._kinds: Array = np.asarray(kinds)
        self._steps: deque[tuple[Array, Array, Array]] = deque(maxlen=_STEPS)
        count = int(self._kinds.max()) + 1
        self.slope: Array = np.full(count, _USUAL_S)
        self.pace: Array = np.ones((count, 1))
        self._weights: list[Array] = []
        self._means: Array = np.ones(count)
        self._scale: Array = 1.0
        self.residual, self.explained = float("inf"), 0.0

    @property
    def features(self) -> int:
        """Number of numbers in a load; 0 before the first step."""
        return int(self._steps[-1][0].shape[-1]) if self._steps else 0

    def forget(self) -> None:
        """Forgets all steps: loads are of another form now."""
        self._steps.clear()
        self.residual, self.explained = float("inf"), 0.0

    def add(self, loads: Array, times_s: Array, slower: Array) -> None:
        """Adds a step.

        Args:
            loads: Load of each instruction's micro-batch, (instructions, pipelines, features).
            times_s: Durations in s, (instructions, pipelines); NaN where there is none.
            slower: Highest clock over the clock in force, less 1, (instructions, pipelines).
        """
        self._steps.append((loads, times_s, slower))

    def fit(self) -> None:
        """Fits the model to the latest steps."""
        import numpy as np

        if not self._steps:
            return
        loads, times_s, slower = (np.concatenate(each, axis=1) for each in zip(*self._steps, strict=True))
        pipelines = self._steps[0][1].shape[1]
        self.pace = np.ones((len(self.slope), pipelines))
        self._scale = np.maximum(np.abs(loads).mean(axis=(0, 1)), 1e-12)
        self._weights, left, varies = [], [], []
        for kind in range(len(self.slope)):
            mine = self._kinds == kind
            basis, taken, low = self._basis(loads[mine]), times_s[mine].ravel(), slower[mine].ravel()
            basis = basis.reshape(len(taken), -1)
            pipeline = np.tile(np.arange(pipelines), len(taken) // pipelines)
            known = np.isfinite(taken)
            if not known.any():
                self.residual = float("inf")
                return
            basis, taken, low, pipeline = basis[known], taken[known], low[known], pipeline[known]
            self._means[kind] = float(taken.mean())
            usual: Array = np.full(len(taken), True)
            size = basis.shape[1]
            weights: Array = np.linalg.lstsq(basis, taken / (1 + self.slope[kind] * low), rcond=None)[0]
            assumed = np.array([[0.0] * size + [_RUNS**0.5 * _ASSUMED * self._means[kind]]])
            for _ in range(_ROUNDS):
                # Pipelines with less work have lower clocks, so coefficients and s are estimated together.
                due_s, longer = basis @ weights, 1 + self.slope[kind] * low
                own = self.pace[kind, pipeline]
                slopes = np.column_stack([basis * (longer * own)[:, None], due_s * low * own])
                aim = taken + self.slope[kind] * due_s * low * own  # linear in both, near the last estimate
                found = np.linalg.lstsq(
                    np.vstack([slopes[usual], assumed]), np.append(aim[usual], assumed[0, -1] * _USUAL_S), rcond=None
                )[0]
                weights, self.slope[kind] = found[:-1], np.clip(found[-1], 0.0, 1.0)
                expected_s = np.maximum(basis @ weights, _LEAST * self._means[kind]) * (1 + self.slope[kind] * low)
                took_s, due_s = (np.bincount(pipeline[usual], each[usual], pipelines) for each in (taken, expected_s))
                self.pace[kind] = np.where(due_s > 0, took_s, 1.0) / np.where(due_s > 0, due_s, 1.0)
                off = taken / (expected_s * self.pace[kind, pipeline]) - 1
                usual = (np.abs(off) <= np.quantile(np.abs(off), 1 - _ODD)) & (off <= STALLED - 1)
            full_s = taken / (1 + self.slope[kind] * low)
            self._weights.append(weights)
            left.append(float(np.std((off * expected_s)[usual])) / self._means[kind])
            varies.append(float(np.std(full_s[usual] / full_s[usual].mean())))
        self.residual = float(np.mean(left))
        self.explained = max(0.0, 1 - (self.residual / max(float(np.mean(varies)), 1e-12)) ** 2)

    def expected_s(self, loads: Array) -> Array:
        """Returns durations at the highest clock, in s, (instructions, pipelines); only after `fit`."""
        import numpy as np

        found: Array = np.zeros(loads.shape[:2])
        for kind, weights in enumerate(self._weights):
            mine = self._kinds == kind
            found[mine] = np.maximum(self._basis(loads[mine]) @ weights, _LEAST * self._means[kind]) * self.pace[kind]
        return found

    def times_slower(self, slower: Any) -> Array:
        """Returns by how many times each instruction takes as long, (instructions, 1) or of the shape of `slower`.

        Args:
            slower: Highest clock over the clock, less 1: one number, or (instructions, pipelines).
        """
        return 1 + self.slope[self._kinds][:, None] * slower

    def _basis(self, loads: Array) -> Array:
        """The functions of the load: (instructions, pipelines, functions)."""
        import numpy as np

        scaled = loads / self._scale
        parts = [np.ones_like(scaled[..., :1]), scaled]
        return np.concatenate([*parts, scaled**2] if scaled.shape[-1] == 1 else parts, axis=-1)
