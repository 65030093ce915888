"""The clock of each pipeline for one step, from the loads of all; and how much time may be lost by that.

All pipelines wait for the one that ends last. So each runs at the lowest clock at which it is expected to end by then,
less a margin: the larger the margin, the rarer an error of the model makes a step longer. The margin follows the lost
time, which the ranks see after each step: up at once, down slowly.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pfo_fs.loads.durations import LoadDurations

Array = Any
"""An array of numpy, which is not typed here."""

LOST_TIME = 0.0005
"""Relative: clocks from loads may make steps longer by this share on average."""
_ERRORS, _LEAST_MARGIN, _MOST_MARGIN = 3.0, 0.003, 0.5
"""The first margin is three times the residual; it stays between the other two, relative to the time of the last
pipeline."""
_UP, _DOWN = 0.5, 0.005
"""A step that lost time raises the margin by this share of what it lost. Each other one lowers it by this share of what
a step may lose, so that the mean loss settles there; but at most by half a percent of the margin, which then halves in
140 steps."""
_EXPLAINS = 0.06
"""Loads whose residual is larger explain too little: all clocks stay the highest."""
_FIRST_STEPS, _EVERY, _OFTEN = 10, 10, 40
"""The model is first fitted after ten steps, then after each up to the 40th, then after every tenth."""


@dataclass(frozen=True)
class Clocks:
    """Clocks that a step may use.

    Attributes:
        offered_mhz: The clocks, highest first.
        least_mhz: The clock at which an instruction takes least energy; no lower one is chosen.
        change_s: After its work, a pipeline must be back at the highest clock when the next step begins: its work ends
            by so much earlier, in s.
    """

    offered_mhz: Sequence[int]
    least_mhz: int
    change_s: float = 0.0

    @property
    def slower(self) -> list[tuple[int, float]]:
        """(MHz, highest clock over it less 1) of each clock that may be chosen, highest first."""
        top = self.offered_mhz[0]
        return [(mhz, top / mhz - 1) for mhz in self.offered_mhz if mhz >= self.least_mhz]


class LoadChoice:
    """Chooses clocks for each step, and learns from each.

    Args:
        kinds: The number of each instruction's kind, (instructions,).
        clocks: The clocks.
        spans_s: From durations (instructions, pipelines) in s to the time at which each pipeline ends, in s.

    Attributes:
        clocks: The clocks; `least_mhz` may change.
        durations: The model.
        margin: Relative to the time of the last pipeline.
        lost: Time that steps lost so far, as a number of steps; by what the ranks measured.
        lost_time: Relative: steps may take longer by this share on average.
        steps: Number of steps so far.
    """

    def __init__(self, kinds: Array, clocks: Clocks, spans_s: Callable[[Array], Array]) -> None:
        self.durations = LoadDurations(kinds)
        self.margin = 0.0
        self.lost, self.steps = 0.0, 0
        self.lost_time = LOST_TIME
        self.clocks, self._spans_s = clocks, spans_s

    @property
    def explains(self) -> bool:
        """Whether loads explain enough to choose clocks by them."""
        return self.durations.residual < _EXPLAINS

    @property
    def status_text(self) -> str:
        """What is known, for people."""
        if self.steps < _FIRST_STEPS:
            return f"learning what loads make of durations: {self.steps} of {_FIRST_STEPS} steps"
        if not math.isfinite(self.durations.residual):
            return "no step had loads of all ranks and an end of their work: all clocks stay the highest"
        residual = f"{100 * self.durations.residual:.1f} %"
        if not self.explains:
            return (
                f"loads leave {residual} of the ranks' times unexplained, more than {100 * _EXPLAINS:.0f} %: "
                "all clocks stay the highest"
            )
        lost = f"{100 * self.lost / self.steps:.3f} % of the time lost, as measured"
        margin = f"margin {100 * self.margin:.1f} %"
        return f"loads leave {residual} of durations unexplained; {margin}; {lost}, over {self.steps} steps"

    def choose(self, loads: Array) -> list[int]:
        """Returns the clock of each pipeline, in MHz.

        Args:
            loads: Load of each instruction's micro-batch, (instructions, pipelines, features).
        """
        import numpy as np

        chosen: Array = np.full(loads.shape[1], self.clocks.offered_mhz[0])
        if not self.explains or not np.isfinite(loads).all():
            return [int(mhz) for mhz in chosen]
        full_s = self.durations.expected_s(loads)
        deadline_s = float(self._spans_s(full_s).max()) * (1 - self.margin) - self.clocks.change_s
        for mhz, slower in self.clocks.slower[1:]:
            in_time = self._spans_s(full_s * self.durations.times_slower(slower)) <= deadline_s
            chosen[in_time] = mhz
        return [int(mhz) for mhz in chosen]

    def learn(self, loads: Array, times_s: Array, mhz: Sequence[float], sure: Any = True) -> float:
        """Learns from a step.

        Args:
            loads: As for `choose`.
            times_s: Durations in s, (instructions, pipelines); NaN where there is none.
            mhz: The clock of each pipeline.
            sure: Whether it was in force all the time, for each pipeline: else durations do not count.

        Returns:
            By how much longer the step took for its clocks, relative.
        """
        import numpy as np

        slower: Array = np.broadcast_to(self.clocks.offered_mhz[0] / np.array(mhz, float) - 1, times_s.shape)
        lost = 0.0
        if np.isfinite(loads).all():
            self.durations.add(loads, np.where(sure, times_s, np.nan), slower)
        if slower.any() and np.isfinite(times_s).all():
            full_s = times_s / self.durations.times_slower(slower)
            lost = max(0.0, float(self._spans_s(times_s).max() / self._spans_s(full_s).max()) - 1)
            self.lost += lost
            if lost > self.lost_time:
                self.margin = min(_MOST_MARGIN, self.margin + _UP * lost)
            else:
                self.margin -= min(_UP * self.lost_time, _DOWN * self.margin)
                self.margin = max(_LEAST_MARGIN, self.margin)
        self.steps += 1
        if self.steps >= _FIRST_STEPS and (self.steps <= _OFTEN or self.steps % _EVERY == 0):
            self.durations.fit()
            if self.explains and not self.margin:
                self.margin = max(_LEAST_MARGIN, _ERRORS * self.durations.residual)
        return lost
