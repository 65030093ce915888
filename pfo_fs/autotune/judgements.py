"""What is believed of plans: what the model makes of them, and what was measured under them and under others."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from pfo_fs.arrays import Array, np
from pfo_fs.autotune.job_layout import ClockPlan, Kind

if TYPE_CHECKING:
    from pfo_fs.autotune.beliefs import Beliefs
    from pfo_fs.autotune.model import JobModel


class ModelError(NamedTuple):
    """By how much the model of a job is wrong, relative, beside the errors of its curves; standard deviations.

    Attributes:
        of_all: What all plans of a job have in common.
        of_one: What a single plan has of its own.
    """

    of_all: float
    of_one: float


ERROR_OF_SAVING = ModelError(of_all=0.02, of_one=0.005)
"""Of the energy that a plan saves. Nodes that cannot make all clock changes in time take 2 % from all plans alike."""
ERROR_OF_TIME = ModelError(of_all=0.001, of_one=0.0003)
"""Of the times of iterations, where everything that was measured of instructions is known."""

_LEAST_VARIANCE = 1e-10
"""Nothing is measured more exactly than to 0.001 %."""
_MOST_TRIALS = 12
"""Of the plans that were measured, the latest 12 tell of others: each costs a play of all scenarios."""
_LEAST_ERROR = 1e-4
"""Relative: no plan's lateness is known more exactly. It is the last digit that people see; iterations that come differ
from the measured ones in ways that no window shows."""


class Judgement(NamedTuple):
    """What is believed of a plan, relative, with standard errors.

    Attributes:
        late, late_error: By how much iterations are longer than the target on average.
        slower: By how much they are longer than at max clocks.
        saved, saved_error: Energy saved against max clocks.
    """

    late: float
    late_error: float
    slower: float
    saved: float
    saved_error: float


class Trial(NamedTuple):
    """What was measured of a plan in turns; everything relative, with standard errors that are infinite if unknown.

    Attributes:
        plan: The plan.
        saved, saved_error: Energy that it saves.
        later, later_error: By how much longer its iterations are than the model makes of the same iterations.
        default_steps: Number of steps at default clocks that tell it; one in which half of the ranks runs them is half.
    """

    plan: ClockPlan
    saved: float
    saved_error: float
    later: float
    later_error: float
    default_steps: int = 0

    def pooled(self, new: Trial) -> Trial:
        """Returns both together; the new one counts for a third at least, since clocks are learned meanwhile."""
        return Trial(
            self.plan,
            *_pooled(self.saved, self.saved_error, new.saved, new.saved_error),
            *_pooled(self.later, self.later_error, new.later, new.later_error),
            self.default_steps + new.default_steps,
        )


def _pooled(old: float, old_error: float, new: float, new_error: float) -> tuple[float, float]:
    """The mean of two values and its standard error."""
    if not old_error and not new_error:
        return (old + new) / 2, 0.0
    if math.isinf(old_error) or math.isinf(new_error):
        return (new, new_error) if math.isinf(old_error) else (old, old_error)
    share = max(1 / 3, old_error**2 / (old_error**2 + new_error**2))
    return old + share * (new - old), math.hypot((1 - share) * old_error, share * new_error)


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
        # No plan is faster than max clocks: where it looks so, those had more work, or clocks acted late.
        late = max(late, -own.slower)
        return Judgement(own.late + late, late_error, own.slower + late, own.saved + more_saved, saved_error)

    @cached_property
    def _powers_w(self) -> dict[tuple[Kind, int], float]:
        """Power of all GPUs of a rank at each clock, in W."""
        return {
            (kind, m.frequency_mhz): m.energy_j / m.time_s * self._model.problem.gpus_per_rank
            for kind, rows in self._model.judged.problem.profile.measurements.items()
            for m in rows
        }


class Offset(NamedTuple):
    """By how much a plan was measured to differ from its model; the standard error is infinite if it was not."""

    value: float
    error: float


def expected_offset(
    measured: Sequence[Offset | None], of_curves: Array, error: ModelError, *, shares_curves: bool
) -> tuple[float, float]:
    """Returns by how much the last plan is expected to differ from its model, and the standard error of that.

    There are three sources of error: the curves (plans with the same clocks share it), the job (all plans share it),
    and the plan itself. All three are normal, so a measured plan tells of the others by their covariance.

    Args:
        measured: What was measured of each plan; None: nothing.
        of_curves: Covariance of what the errors of the curves make of the plans.
        error: That of the model; what a plan has of its own is at least that of what was measured.
        shares_curves: Whether the errors of the curves are in what was measured. They are not where iterations are
            compared with the model of the same iterations.
    """
    count = len(measured)
    rows, values, variances = [], [], []
    for number, each in enumerate(measured):
        if each is not None and math.isfinite(each.error):
            row = np.zeros(2 * count)
            row[number], row[count + number] = 1.0, float(shares_curves)
            rows.append(row)
            values.append(each.value)
            variances.append(each.error**2)
    last = np.zeros(2 * count)
    last[count - 1] = last[-1] = 1.0
    # Plans may differ by more than was expected.
    apart = [
        float(row[count:] @ of_curves @ row[count:]) + variance for row, variance in zip(rows, variances, strict=True)
    ]
    spread = float(np.var(values)) - float(np.mean(apart)) if len(values) > 1 else 0.0
    own: Array = np.full((count, count), error.of_all**2) + np.eye(count) * max(error.of_one**2, spread)
    prior: Array = np.block([[own, np.zeros((count, count))], [np.zeros((count, count)), of_curves]])
    variance = float(last @ prior @ last)
    if not rows:
        return 0.0, math.sqrt(variance)
    seen: Array = np.array(rows)
    joint = seen @ prior @ seen.T + np.diag(np.maximum(variances, _LEAST_VARIANCE))
    gain = np.linalg.solve(joint, seen @ prior @ last)
    return float(gain @ np.array(values)), math.sqrt(max(0.0, variance - float(gain @ (seen @ prior @ last))))


def error_of_mean(values: Array) -> float:
    """The standard error of a mean."""
    return float(values.std()) / math.sqrt(max(1, len(values) - 1))


def highest_scatter(scatter: float, count: int) -> float:
    """The standard deviation that is exceeded with a probability of 5 %, if `count` values scatter by `scatter`.

    The quantile of chi square is that of Wilson and Hilferty (1931).
    """
    free = max(1, count - 1)
    quantile = free * (1 - 2 / (9 * free) - 1.645 * math.sqrt(2 / (9 * free))) ** 3
    return scatter * math.sqrt(free / max(quantile, 0.004))
