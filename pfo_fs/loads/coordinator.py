"""Rank 0's side of clocks from loads: takes the rows of all ranks at each step, and gives each its clock.

Ranks of one data-parallel place (a lane: a pipeline, or one rank or more of tensor parallelism) hold the same
micro-batches and get the same clock. Of the ranks that share a stage, the last one counts.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from pfo_fs.loads.choice import Clocks, LoadChoice
from pfo_fs.loads.energies import StepEnergies
from pfo_fs.loads.state import LEAST_BALANCED, LastStep, LoadsState, last_step
from pfo_fs.loads.step_rows import StepRows
from pfo_fs.loads.step_shape import StepShape

Array = Any
"""An array of numpy, which is not typed here."""

_LOWEST = 0.6
"""No clock is below this share of the highest one: measured GPUs (A100, A40, H100) take least energy at 0.55 to 0.65 of
it, and the ranks' own measurements may raise it."""
_KEPT = 64
"""A step whose end has not come from all ranks after 64 others is forgotten."""


@dataclass
class _Open:
    """A step that has begun: its loads, and what has come of its end."""

    step: int
    loads: Array
    work_s: Array
    mhz: Array
    powers_w: Array


class LoadCoordinator:
    """Chooses the clocks of all ranks.

    Args:
        places: The lane of each rank, counted from 0, and its rank in the pipeline.
        offered_mhz: The clocks that all GPUs offer, highest first.
        change_s: How long a change of the clock takes until it acts, in s.
        lost_time: Relative: steps may take longer by this share on average.
        shape: What the ranks of a pipeline run in a step; without a pipeline, None.
    """

    def __init__(
        self,
        places: Sequence[tuple[int, int]],
        offered_mhz: Sequence[int],
        change_s: float,
        lost_time: float,
        shape: StepShape | None = None,
    ) -> None:

        top = offered_mhz[0]
        self._offered = [mhz for mhz in offered_mhz if mhz >= _LOWEST * top]
        self._shape = shape or StepShape.alone()
        self._lanes, self._stages = (list(column) for column in zip(*places, strict=True))
        self._num_lanes = max(self._lanes) + 1
        self._first_ranks = [self._lanes.index(lane) for lane in range(self._num_lanes)]
        clocks = Clocks(self._offered, self._offered[-1], change_s)
        self._choice = LoadChoice(self._shape, clocks, lost_time)
        self._energies = StepEnergies(top)
        self._open: deque[_Open] = deque(maxlen=_KEPT)
        self._readings: Array | None = None
        self._untaken: Array | None = None
        self._odd: int | None = None  # a rank whose loads have another form than those of most
        self._began_s: dict[int, float] = {}
        self._lowered = 0
        self._last: LastStep | None = None
        self._varied: deque[tuple[float, float]] = deque(maxlen=_KEPT)

    def receive(self, rows: Sequence[Sequence[float]], began_s: float) -> list[int]:
        """Takes a step's rows; returns the clock of each rank in MHz, 0 for the default clock. `learn` comes after it.

        Args:
            rows: `step_rows.make_row` of all ranks, in their order.
            began_s: When this rank has begun the step, in s.

        Raises:
            ValueError: The ranks are not at the same step.
        """
        import numpy as np

        told = StepRows(rows)
        steps = told.steps
        if not (steps == steps[0]).all():
            raise ValueError(f"rank {int(steps.argmax())} is at step {steps.max():g}, another one at {steps.min():g}")
        self._take_readings(told.readings, began_s)
        self._untaken, self._odd = told.ended, told.odd_rank
        loads = told.loads_of(self._lanes, self._shape.micro_batches)
        unknown: Array = np.full(len(rows), np.nan)
        self._open.append(_Open(int(steps[0]), loads, unknown, unknown.copy(), unknown.copy()))
        top = self._offered[0]
        mhz = [top] * self._num_lanes
        if self._same_features(loads):
            mhz = self._choice.choose(loads)
        self._lowered += min(mhz) < top
        return [0 if mhz[lane] == top else mhz[lane] for lane in self._lanes]

    def _same_features(self, loads: Array) -> bool:
        return bool(loads.shape[-1] == self._choice.durations.features)

    def _take_readings(self, readings: Array, began_s: float) -> None:
        """Notes the energies of steps that have passed, and when the one that runs has begun."""
        import numpy as np

        before, self._readings = self._readings, readings.copy()
        runs = int(readings[0, 0])
        self._began_s.setdefault(runs, began_s)
        while len(self._began_s) > _KEPT:
            del self._began_s[min(self._began_s)]
        if before is None:
            return
        took_s = readings[:, 2] - before[:, 2]
        passed = (readings[:, 0] == before[:, 0] + 1) & (took_s > 0)
        powers_w = (readings[:, 1] - before[:, 1]) / np.where(passed, took_s, 1.0)
        for one in self._open:
            of_this = passed & (before[:, 0] == one.step)
            one.powers_w[of_this] = powers_w[of_this]

    def learn(self) -> None:
        """Learns from the steps that the last rows say have ended; call it after each `receive`."""
        import numpy as np

        ended, self._untaken = self._untaken, None
        if ended is None:
            return
        for one in self._open:
            rank, place = np.nonzero(ended[:, :, 0] == one.step)
            one.work_s[rank], one.mhz[rank] = ended[rank, place, 1], ended[rank, place, 2]
        # Each rank tells its ends in order: what has not come for a step before the last complete one will not come.
        complete = [one.step for one in self._open if np.isfinite(one.work_s).all()]
        while complete and self._open[0].step <= complete[-1]:
            done = self._open.popleft()
            if done.step in complete:
                began_s, ended_s = (self._began_s.get(step, np.nan) for step in (done.step, done.step + 1))
                self._learn(done, ended_s - began_s)
            if not self._open:
                break

    def _learn(self, done: _Open, step_s: float) -> None:
        """Learns from a step that all ranks have ended."""
        import numpy as np

        ends_s: Array = np.full((self._shape.ranks, self._num_lanes), -np.inf)
        np.maximum.at(ends_s, (self._stages, self._lanes), done.work_s)
        mhz, top = done.mhz[self._first_ranks], self._offered[0]
        choice = self._choice
        if np.isfinite(done.loads).all() and not self._same_features(done.loads) and choice.durations.features:
            choice.durations.forget()
        # A clock that came late counts in the lost time, as if it had been there, but not in what durations teach.
        in_force = np.where(np.isfinite(mhz), np.abs(mhz), top)
        are_sure: Array = np.full(self._num_lanes, True)
        np.logical_and.at(are_sure, self._lanes, done.mhz > 0)
        choice.learn(done.loads, ends_s, in_force, sure=are_sure)
        worked_s, full_s = choice.without_stalls(done.loads, ends_s, in_force)
        self._last = last_step(done.step, in_force, worked_s.max(axis=0), full_s.max(axis=0)) or self._last
        if step_s > 0 and self._shape.ranks > 1 and not choice.explains:
            self._energies.add_at_top(done.powers_w * step_s)
        elif step_s > 0:
            if choice.explains and np.isfinite(done.loads).all():
                worked_s = worked_s * choice.durations.busy(done.loads, top / in_force - 1)
                full_s = full_s * choice.durations.busy(done.loads)
            worked_s, full_s = (done.work_s * (each / ends_s)[self._stages, self._lanes] for each in (worked_s, full_s))
            clocks = np.where(done.mhz > 0, done.mhz, np.nan)
            unsure = choice.durations.residual if choice.explains else 0.0
            self._energies.add(done.powers_w * step_s, step_s, worked_s, full_s, clocks, unsure)
        if self._lowered:
            least = self._energies.least_mhz(self._offered, choice.durations.slope)
            if self._energies.saving is not None:
                choice.clocks = replace(choice.clocks, least_mhz=least)
        if choice.explains and np.isfinite(done.loads).all():
            # Of what loads explain: neither noise nor a slow worker can be balanced.
            due_s = choice.durations.ends_s(done.loads).max(axis=0) / choice.durations.pace
            self._varied.append((float(due_s.max()), float(due_s.mean())))

    @property
    def state(self) -> LoadsState:
        """What is known now."""
        choice = self._choice
        late, late_error = choice.late
        longest, mean = (sum(column) for column in zip(*self._varied, strict=True)) if self._varied else (0.0, 0.0)
        balanced = 1 - mean / longest if longest else 0.0
        explained = choice.durations.explained if choice.explains else None
        saving = self._energies.saving if self._lowered else None
        text = choice.status_text
        if explained is not None and not choice.has_lost_too_much:
            saved = "energy saved not known yet"
            if saving is not None:
                saved = f"{100 * saving.share:.1f} % ± {100 * saving.error:.1f} less energy"
            elif not self._lowered:
                saved = (
                    "no clock could be lowered: less work saves no more than the margin and the "
                    f"{1000 * choice.clocks.change_s:.0f} ms in which a clock changes"
                )
            text = (
                f"loads explain {math.floor(100 * explained)} % of what varies; {saved}, {100 * late:.2f} % ± "
                f"{100 * late_error:.2f} slower, over {choice.steps} steps; margin {100 * choice.margin:.1f} %"
            )
        if self._odd is not None:
            text += f". Rank {self._odd} gives loads of another form than most ranks: default clocks in such steps"
        if balanced >= LEAST_BALANCED:
            text += f". Batches of equal work would make steps {100 * balanced:.0f} % shorter"
        return LoadsState(
            choice.steps,
            explained,
            choice.durations.residual,
            choice.margin,
            self._lowered,
            late,
            late_error,
            saving,
            balanced,
            text,
            self._last,
        )
