"""Judges plans: what the model predicts of them, corrected by what was measured under them and under others."""

from __future__ import annotations

import math
from collections import defaultdict
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

    All plans of a job have `of_all` in common; `of_one` is a single plan's own.
    """

    of_all: float
    of_one: float


ERROR_OF_SAVING = ModelError(of_all=0.02, of_one=0.005)
"""Relative to the energy at max clocks. Hosts that make some clock changes late take 2 % from all plans alike."""
ERROR_OF_TIME = ModelError(of_all=0.001, of_one=0.0003)
"""Relative to the times of iterations, if everything that was measured of instructions is known."""

_LEAST_VARIANCE = 1e-10
"""No figure is measured more exactly than to 0.001 %; this is the square of that."""
_MOST_TRIALS = 12
"""Only the latest 12 of the measured plans are used to judge others: each of them costs a play of all scenarios."""
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


class Figure(NamedTuple):
    """A relative figure and its standard error, which is infinite if the figure is not known."""

    value: float = 0.0
    error: float = math.inf

    @property
    def is_known(self) -> bool:
        """Whether it was measured."""
        return self.error < math.inf

    def pooled(self, new: Figure) -> Figure:
        """Returns the mean of both; the new one counts for a third at least, since clocks are learned meanwhile."""
        if not self.error and not new.error:
            return Figure((self.value + new.value) / 2, 0.0)
        if not (self.is_known and new.is_known):
            return self if self.is_known else new
        share = max(1 / 3, self.error**2 / (self.error**2 + new.error**2))
        error = math.hypot((1 - share) * self.error, share * new.error)
        return Figure(self.value + share * (new.value - self.value), error)


class Trial(NamedTuple):
    """What was measured of a plan in turns.

    Attributes:
        saved: Energy that it saves.
        later: By how much longer its iterations are than the model predicts for the same iterations.
        slower: By how much longer they are than those at default clocks.
        default_steps: Measured steps at default clocks; a step in which half of the ranks had them counts half.
    """

    plan: ClockPlan
    saved: Figure = Figure()
    later: Figure = Figure()
    slower: Figure = Figure()
    default_steps: int = 0

    def pooled(self, new: Trial) -> Trial:
        """Returns the two as one trial."""
        steps = self.default_steps + new.default_steps
        saved, later = self.saved.pooled(new.saved), self.later.pooled(new.later)
        return Trial(self.plan, saved, later, self.slower.pooled(new.slower), steps)


class _ByModel(NamedTuple):
    """What the model predicts of a plan, relative.

    Attributes:
        late, slower, saved: As in `Judgement`.
        sampling: Standard error of `late` that comes from the differences between iterations.
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
    """Judges plans by a model of the job and by what was measured."""

    def __init__(self, model: JobModel, beliefs: Beliefs) -> None:
        self._model, self._beliefs = model, beliefs
        self._judgements: dict[ClockPlan, Judgement] = {}
        self._by_model: dict[ClockPlan, _ByModel] = {}

    def judgement(self, plan: ClockPlan) -> Judgement:
        """Returns what is believed of a plan."""
        if plan not in self._judgements:
            self._judgements[plan] = self._believed(plan)
        return self._judgements[plan]

    def _alone(self, plan: ClockPlan) -> _ByModel:
        """What the model predicts of a plan."""
        if plan not in self._by_model:
            self._by_model[plan] = self._played(self._model.for_groups(plan))
        return self._by_model[plan]

    def _played(self, clocks: list[tuple[int, ...]]) -> _ByModel:
        model, judged = self._model, self._model.judged
        played = judged.play(judged.numbers(clocks))
        times_s: Array = played.spans_s.max(axis=1) + model.problem.overhead_s
        paired = times_s / model.full_times_s
        _, weights = judged.mean_makespan(played.times_s, weights=True)
        critical_s = judged.by_group(weights * judged.iterations * played.times_s)
        busy_s = judged.by_group(played.times_s)
        times: dict[tuple[Kind, int], float] = defaultdict(float)
        powers: dict[tuple[Kind, int], float] = defaultdict(float)
        tops, powers_w = model.max_clocks.clocks_mhz[0], self._powers_w
        for node, instruction in enumerate(model.problem.pipeline.instructions):
            kind, top_mhz = (instruction.stage, instruction.name), tops[node]
            for group, row in enumerate(clocks):
                mhz = row[node]
                if mhz != top_mhz:
                    time = float(critical_s[node, group]) / played.mean_s
                    power = powers_w[kind, mhz] * float(busy_s[node, group]) / model.full_j
                    for at, sign in ((mhz, 1), (top_mhz, -1)):
                        times[kind, at] += sign * time
                        powers[kind, at] += sign * power
        return _ByModel(
            late=played.mean_s / model.target_s - 1,
            slower=float(np.sum(times_s) / np.sum(model.full_times_s)) - 1,
            saved=1 - (played.energy_j + model.tail_j) / model.full_j,
            sampling=float(paired.std()) / math.sqrt(model.iterations),
            times=times,
            powers=powers,
        )

    def _believed(self, plan: ClockPlan) -> Judgement:
        """What is believed by the model, and by what was measured under this plan and others."""
        model, own, trials = self._model, self._alone(plan), self._beliefs.trials
        if plan == model.max_clocks:
            return Judgement(own.late, own.sampling, own.slower, own.saved, 0.0)
        telling = [trial for trial in trials.values() if model.knows(trial.plan)][-_MOST_TRIALS:]
        measured = [*(trial for trial in telling if trial.plan != plan), trials.get(plan, Trial(plan))]
        modelled = [self._alone(trial.plan) for trial in measured]
        of_times = model.curves.covariance_of([alone.times for alone in modelled])
        of_times[-1, -1] += own.sampling**2
        of_powers = model.curves.covariance_of([alone.powers for alone in modelled], powers=True)
        later = [trial.later for trial in measured]
        saved = [
            Figure(trial.saved.value - alone.saved, trial.saved.error)
            for trial, alone in zip(measured, modelled, strict=True)
        ]
        slower = [
            Figure(trial.slower.value - alone.slower, trial.slower.error)
            for trial, alone in zip(measured, modelled, strict=True)
        ]
        late, late_error = expected_offset(later, of_times, ERROR_OF_TIME, slower, shares_curves=False)
        more_saved, saved_error = expected_offset(saved, of_powers, ERROR_OF_SAVING, shares_curves=True)
        late_error = math.hypot(late_error, _LEAST_ERROR)
        # No plan is faster than max clocks, unless the curves say so (some boards are slower at the highest clock):
        # if it was measured to be, the steps at max clocks had more work, or clocks acted late.
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


def expected_offset(
    measured: Sequence[Figure],
    of_curves: Array,
    error: ModelError,
    directly: Sequence[Figure] = (),
    *,
    shares_curves: bool,
) -> Figure:
    """Returns by how much the last plan is expected to differ from its model.

    There are three sources of error: the curves (plans with the same clocks share their errors), the job (all plans
    share its error), and the plan itself. All are normal, so a measured plan tells of the others by their covariance.

    Args:
        measured: By how much each plan differed from its model.
        of_curves: Covariance of the errors of the predictions that come from the curves.
        error: The model's error; if the measured plans scatter by more than `of_one`, their scatter takes its place.
        directly: As `measured`, but beside default clocks, so with the errors of the curves; empty, or as long.
        shares_curves: Whether the errors of the curves are in `measured`. They are not if iterations are compared with
            the model of the same iterations.
    """
    count = len(measured)
    figures = [*measured, *directly]
    known = [number for number, figure in enumerate(figures) if figure.is_known]
    values = np.array([figures[number].value for number in known])
    variances = np.array([figures[number].error ** 2 for number in known])
    # Which errors are in each figure: those of its plan, and those of the curves.
    with_curves = np.hstack([np.eye(count), np.eye(count)])
    without_curves = np.hstack([np.eye(count), np.zeros((count, count))])
    parts = np.vstack([with_curves if shares_curves else without_curves, with_curves])[known]
    last = with_curves[-1]
    # Plans may differ by more than was expected.
    of_measured = [row for row, number in enumerate(known) if number < count]
    apart = [float(parts[row, count:] @ of_curves @ parts[row, count:]) + variances[row] for row in of_measured]
    spread = float(np.var(values[of_measured])) - float(np.mean(apart)) if len(of_measured) > 1 else 0.0
    own: Array = np.full((count, count), error.of_all**2) + np.eye(count) * max(error.of_one**2, spread)
    prior: Array = np.block([[own, np.zeros((count, count))], [np.zeros((count, count)), of_curves]])
    variance = float(last @ prior @ last)
    if not known:
        return Figure(0.0, math.sqrt(variance))
    joint = parts @ prior @ parts.T + np.diag(np.maximum(variances, _LEAST_VARIANCE))
    gain = np.linalg.solve(joint, parts @ prior @ last)
    return Figure(float(gain @ values), math.sqrt(max(0.0, variance - float(gain @ (parts @ prior @ last)))))


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
