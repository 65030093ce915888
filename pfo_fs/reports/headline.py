"""The first figures of the page: what the plan in force saves, against everything at the highest clocks."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

from pfo_fs.autotune.status_text import TIMES_THE_ERROR
from pfo_fs.reports.collect import JobData, Window
from pfo_fs.reports.forecast import Curve, Forecast, Predicted

_ON_FRONTIER = 0.03
"""Relative: a schedule whose energy is above the least at its time by at most this counts as a plan."""
_EQUAL_WORK = 0.03
"""Relative: iterations under one schedule that scatter by at most this count as equal work. Chosen, not measured: the
means of ten such iterations differ by 1 % by chance, about what a plan may be wrong by."""


@dataclass(frozen=True)
class Figures:
    """An iteration of the whole job: time until the last instruction has ended and energy over all GPUs.

    Attributes:
        span_s: Time in s until the last instruction has ended.
        time_s: Time in s until the end of the step.
        energy_j: Energy over all GPUs, in J.
        origin: How these figures were found, as text.
        time_error, energy_error: Relative standard errors of the means; None: not known.
    """

    span_s: float
    time_s: float
    energy_j: float
    origin: str
    time_error: float | None = None
    energy_error: float | None = None

    @property
    def power_w(self) -> float:
        """Mean power of all GPUs together, in W."""
        return self.energy_j / self.time_s


@dataclass(frozen=True)
class Headline:
    """The schedule in force, and what it is compared with.

    Attributes:
        baseline: Measured figures at the highest clocks, scaled to the present power; None if there are none.
        measured: Measured figures under the schedule in force; None while there are no complete results.
        predicted: The model's figures for the schedule in force; None without a model.
        predicted_baseline: The model's figures for the highest clocks; None without a model.
        same_since: The first step at which the clocks were the present ones; they may have changed meanwhile.
        work_differs: By how much iterations under one schedule scatter, relative, if that is more than equal work does;
            0: their work is equal, or it is not known.
    """

    baseline: Figures | None
    measured: Figures | None
    predicted: Figures | None
    predicted_baseline: Figures | None
    same_since: int | None
    work_differs: float = 0.0
    same_work: bool = False
    """Whether the baseline is the work of the measured iterations, so that its errors are those of the comparison."""

    def change_errors(self) -> tuple[float | None, float | None]:
        """Two standard errors of the changes of time and energy from `against` to `best`, as the scheduler's status
        tells them; None: not known."""
        best, against = self.best, self.against()
        if best is None or against is None:
            return None, None
        if self.same_work:
            return _twice(against.time_error), _twice(against.energy_error)
        return _twice(best.time_error, against.time_error), _twice(best.energy_error, against.energy_error)

    @property
    def best(self) -> Figures | None:
        """Measured figures if there are any, else predicted ones."""
        return self.measured or self.predicted

    def against(self) -> Figures | None:
        """The figures that `best` is compared with: measured ones if possible."""
        return self.baseline or (self.predicted_baseline if self.measured is None else None)


def headline_of(data: JobData, forecast: Forecast | None, predictions: Mapping[int, Predicted]) -> Headline:
    """Returns the headline of a job.

    Where the scheduler knows what the plan in force saves, corrected for the work of each iteration, the baseline is
    the work of the measured iterations at the highest clocks. Otherwise the means of two windows are compared, unless
    iterations differ in work: two windows then had different work, and there is no baseline.
    """
    after_s = forecast.after_s if forecast is not None else 0.0
    window = data.in_force

    def as_figures(predicted: Predicted | None) -> Figures | None:
        if predicted is None:
            return None
        return Figures(predicted.time_s - after_s, predicted.time_s, predicted.energy_j, "predicted")

    alike = [other for other in data.windows if window is not None and other.is_like(window)]
    measured = next((found for other in reversed(alike) if (found := _figures(other)) is not None), None)
    # At the highest clocks, any difference from an earlier window is an error of the energy counters.
    saves_nothing = window is not None and measured is not None and is_highest(data, window)
    differs = work_differs(data)
    same_work = None if saves_nothing else _same_work(data, measured)
    if saves_nothing or same_work is not None:
        baseline = same_work or measured
    else:
        baseline = None if differs and measured is not None else _baseline(data)
    return Headline(
        baseline=baseline,
        measured=measured,
        predicted=as_figures(predictions.get(window.number)) if window is not None else None,
        predicted_baseline=as_figures(forecast.all_maximum()) if forecast is not None else None,
        same_since=alike[0].index.start_step if alike else None,
        work_differs=differs,
        same_work=same_work is not None,
    )


def work_differs(data: JobData) -> float:
    """Returns by how much iterations under one schedule scatter, relative; 0 if equal work scatters as much."""
    spreads = [w.measured.time_spread for w in data.windows if w.measured and w.measured.time_spread is not None]
    typical = median(spreads) if spreads else 0.0
    return typical if typical > _EQUAL_WORK else 0.0


def _same_work(data: JobData, measured: Figures | None) -> Figures | None:
    """The work of the measured iterations at the highest clocks, as the scheduler believes of the plan in force."""
    model, window = data.model, data.in_force
    if model is None or measured is None or window is None or window.index.steps:
        return None  # a schedule for measuring is not what the scheduler's figures are about
    known = model.energy_saved, model.more_time, model.energy_saved_error, model.more_time_error
    if window.index.source.kind != "scheduler" or any(figure is None or not math.isfinite(figure) for figure in known):
        return None
    saved, more, saved_error, more_error = (figure or 0.0 for figure in known)
    if saved >= 1 or more <= -1:
        return None
    span_s = measured.span_s / (1 + more)
    return Figures(
        span_s,
        span_s + measured.time_s - measured.span_s,
        measured.energy_j / (1 - saved),
        "the same work at the highest clocks, by what the scheduler has measured",
        more_error / (1 + more),
        saved_error / (1 - saved),
    )


def _figures(window: Window) -> Figures | None:
    measured = window.measured
    if measured is None or measured.energy_j is None:
        return None
    origin = f"measured under schedule {window.number}, {measured.iterations} iteration"
    origin += "s" if measured.iterations != 1 else ""
    origin += "" if any(_clocks(window)) else "; clocks were left alone, which counts as the highest"
    errors = (_error_of_mean(spread, measured.iterations) for spread in (measured.time_spread, measured.energy_spread))
    return Figures(measured.span_s, measured.time_s, measured.energy_j, origin, *errors)


def _twice(*errors: float | None) -> float | None:
    known = [error for error in errors if error is not None]
    return TIMES_THE_ERROR * math.hypot(*known) if len(known) == len(errors) else None


def _error_of_mean(spread: float | None, iterations: int) -> float | None:
    return None if spread is None else spread / math.sqrt(iterations)


def _baseline(data: JobData) -> Figures | None:
    """Everything at the highest clocks, or clocks left alone, which is nearly the same on most GPUs."""
    model = data.model
    candidates = [w for w in data.windows if w.measured is not None and w.measured.energy_j is not None]
    highest = next((w for w in candidates if w.schedules and is_highest(data, w)), None)
    known = model is not None and all(
        0 < figure < math.inf for figure in (model.full_time_s, model.full_energy_j, model.power_drift_factor)
    )
    if model is not None and known:
        after_s = highest.measured.time_s - highest.measured.span_s if highest and highest.measured else 0.0
        origin = "measured at the highest clocks"
        if abs(model.power_drift_factor - 1) >= 0.0005:
            change = model.power_drift_factor - 1
            word = "more" if change > 0 else "less"
            origin += f"; GPUs draw {abs(change):.1%} {word} power now than then, which is counted"
        found = _figures(highest) if highest is not None else None
        return Figures(
            model.full_time_s,
            model.full_time_s + max(0.0, after_s),
            model.full_energy_j * model.power_drift_factor,
            origin,
            found.time_error if found is not None else None,
            found.energy_error if found is not None else None,
        )
    window = highest or next((w for w in candidates if not any(_clocks(w))), None)
    return _figures(window) if window is not None else None


def _clocks(window: Window) -> list[int]:
    return [mhz for schedule in window.schedules.values() for _, mhz in schedule.frequencies]


def is_highest(data: JobData, window: Window) -> bool:
    """Whether a schedule runs everything at the highest clock that each GPU offers."""
    tops = {info.rank: max(info.available_frequencies, default=0) for info in data.infos}
    return len(window.schedules) == len(tops) and all(
        mhz == tops[rank] for rank, schedule in window.schedules.items() for _, mhz in schedule.frequencies
    )


def above_frontier(window: Window, predicted: Predicted | None, curve: Curve | None) -> float | None:
    """How much more energy an iteration takes than the least at its time, relative; None if it is not known."""
    plan_inputs = window.index.source.plan_inputs
    if curve is None or plan_inputs.slow_pipelines or plan_inputs.straggler is not None:
        return None  # the frontier does not hold for iterations that wait for a straggler
    measured = window.measured
    if measured is not None and measured.energy_j is not None:
        time_s, energy_j = measured.time_s, measured.energy_j
    elif predicted is not None:
        time_s, energy_j = predicted.time_s, predicted.energy_j
    else:
        return None
    least_j = curve.energy_at(time_s)
    return None if least_j is None else energy_j / least_j - 1


def purpose(data: JobData, window: Window, above: float | None, may_profile: bool) -> str:
    """What a schedule was for, as far as its record and its clocks show.

    Args:
        data: The job.
        window: The schedule.
        above: How far above the frontier it is, relative; None if it is not known.
        may_profile: Whether there is a frontier and no earlier schedule was on it; a schedule that is not on it then
            counts as profiling.
    """
    source = window.index.source
    if source.kind == "yaml":
        return "by hand (schedule.yaml)"
    if not any(_clocks(window)):
        return "clocks left alone"
    if source.plan_inputs.slow_pipelines or source.plan_inputs.straggler is not None:
        return "plan for a straggler's pace"
    if is_highest(data, window):
        return "everything at the highest clocks"
    if above is not None and above <= _ON_FRONTIER:
        return "plan"
    if may_profile:
        return "profiling"
    return "one clock" if len(set(_clocks(window))) == 1 else "several clocks"
