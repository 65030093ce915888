"""What is believed of a plan: what the model makes of it, and what was measured under it and under others."""

from __future__ import annotations

import math
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from pfo_fs.arrays import Array, np
from pfo_fs.autotune.beliefs import Beliefs
from pfo_fs.autotune.job_layout import Kind
from pfo_fs.autotune.judgements import (
    ERROR_OF_SAVING,
    ERROR_OF_TIME,
    ClockPlan,
    Judgement,
    Offset,
    expected_offset,
)

if TYPE_CHECKING:
    from pfo_fs.autotune.model import JobModel


_MOST_TRIALS = 12
"""Of the plans that were measured, the latest 12 tell of others: each costs a play of all scenarios."""
_LEAST_ERROR = 1e-4
"""Relative: no plan's lateness is known more exactly. It is the last digit that people see; iterations that come differ
from the measured ones in ways that no window shows."""


class _ByModel(NamedTuple):
    """What the model makes of a plan, relative.

    Attributes:
        late, slower, saved: As in `Judgement`.
        sampling: Standard error of `late` since iterations differ.
        times, powers: The derivative of `late` and `saved` by the logarithm of the time or power of each kind at each
            clock.
    """

    late: float
    slower: float
    saved: float
    sampling: float
    times: dict[tuple[Kind, int], float]
    powers: dict[tuple[Kind, int], float]


class PlanJudge:
    """Judges plans.

    Args:
        model: The model of the job.
        beliefs: What was measured.
    """

    def __init__(self, model: JobModel, beliefs: Beliefs) -> None:
        self._model, self._beliefs = model, beliefs
        self._judgements: dict[object, Judgement] = {}
        self._by_model: dict[object, _ByModel] = {}

    def judgement(self, plan: ClockPlan) -> Judgement:
        """Returns what is believed of a plan."""
        if plan.key not in self._judgements:
            self._judgements[plan.key] = self._believed(plan)
        return self._judgements[plan.key]

    def _alone(self, plan: ClockPlan) -> _ByModel:
        """Returns what the model makes of a plan."""
        if plan.key in self._by_model:
            return self._by_model[plan.key]
        model = self._model
        clocks = model.for_groups(plan)
        judged = model.judged
        played = judged.play(judged.numbers(clocks))
        times_s: Array = played.spans_s.max(axis=1) + model.problem.overhead_s
        paired = times_s / model.full_times_s
        sampling = float(paired.std()) / math.sqrt(model.iterations)
        _, weights = judged.mean_makespan(played.times_s, weights=True)
        critical_s = judged.by_group(weights * judged.iterations * played.times_s)
        busy_s = judged.by_group(played.times_s)
        shares: dict[tuple[Kind, int], float] = {}
        power_shares: dict[tuple[Kind, int], float] = {}
        tops, powers_w = model.max_clocks.clocks_mhz[0], self._powers_w
        for node, instruction in enumerate(model.problem.pipeline.instructions):
            kind, top_mhz = (instruction.stage, instruction.name), tops[node]
            for group, row in enumerate(clocks):
                mhz = row[node]
                if mhz != top_mhz:
                    share = float(critical_s[node, group]) / played.mean_s
                    part = powers_w[kind, mhz] * float(busy_s[node, group]) / model.full_j
                    for at, sign in ((mhz, 1), (top_mhz, -1)):
                        shares[kind, at] = shares.get((kind, at), 0.0) + sign * share
                        power_shares[kind, at] = power_shares.get((kind, at), 0.0) + sign * part
        found = _ByModel(
            late=played.mean_s / model.target_s - 1,
            slower=float(np.sum(times_s) / np.sum(model.full_times_s)) - 1,
            saved=1 - (played.energy_j + model.tail_j) / model.full_j,
            sampling=sampling,
            times=shares,
            powers=power_shares,
        )
        self._by_model[plan.key] = found
        return found

    def _believed(self, plan: ClockPlan) -> Judgement:
        """Returns a judgement by the model and by what was measured under this plan and others."""
        model, own = self._model, self._alone(plan)
        if plan.key == model.max_clocks.key:
            return Judgement(own.late, own.sampling, own.slower, own.saved, 0.0)
        trials = [each for each in self._beliefs.trials.values() if model.knows(each.plan)][-_MOST_TRIALS:]
        others = [each for each in trials if each.plan.key != plan.key]
        mine = self._beliefs.trials.get(plan.key)
        plans = [*(self._alone(each.plan) for each in others), own]
        of_times = model.curves.covariance_of([each.times for each in plans])
        of_times[-1, -1] += own.sampling**2
        of_powers = model.curves.covariance_of([each.powers for each in plans], powers=True)
        measured = [*others, mine]
        later = [None if each is None else Offset(each.later, each.later_error) for each in measured]
        saved = [
            None if each is None else Offset(each.saved - alone.saved, each.saved_error)
            for each, alone in zip(measured, plans, strict=True)
        ]
        late, late_error = expected_offset(later, of_times, ERROR_OF_TIME, shares_curves=False)
        more_saved, saved_error = expected_offset(saved, of_powers, ERROR_OF_SAVING, shares_curves=True)
        late_error = math.hypot(late_error, _LEAST_ERROR)
        # No plan is faster than max clocks, unless the curves say so (some boards are slower at the highest clock): where
        # it was measured to be, those had more work, or clocks acted late.
        late = max(late, min(0.0, -own.slower))
        return Judgement(own.late + late, late_error, own.slower + late, own.saved + more_saved, saved_error)

    @cached_property
    def _powers_w(self) -> dict[tuple[Kind, int], float]:
        """Power of all GPUs of a rank at each clock, in W."""
        return {
            (kind, m.frequency_mhz): m.energy_j / m.time_s * self._model.problem.gpus_per_rank
            for kind, rows in self._model.judged.problem.profile.measurements.items()
            for m in rows
        }
