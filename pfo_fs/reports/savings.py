"""What a job saved, with its error, against max clocks: the schedule in force, and all iterations so far."""

import math
from dataclasses import dataclass, replace
from statistics import median
from typing import NamedTuple

from pfo_fs.arrays import np
from pfo_fs.autotune.goals import TIMES_THE_ERROR
from pfo_fs.reports.collect import JobData, Window
from pfo_fs.reports.timeline import spans_of
from pfo_fs.reports.wording import counted
from pfo_fs.turns import share_of

_EQUAL_WORK = 0.03
"""Relative: iterations under one schedule that scatter by at most this count as equal work. Chosen, not measured: the
means of ten such iterations differ by 1 % by chance, about what a plan may be wrong by."""


class Figures(NamedTuple):
    """An iteration of the whole job: its duration in s, the energy of all GPUs in J, the time in s until the last
    instruction has ended, where these come from, and the relative standard errors of the means; None: not known."""

    time_s: float
    energy_j: float
    span_s: float
    origin: str
    time_error: float | None = None
    energy_error: float | None = None


@dataclass(frozen=True)
class Savings:
    """The schedule in force, and what it is compared with.

    Attributes:
        measured: Figures under the schedule in force; None while there are no complete results.
        baseline: Figures at max clocks, for comparison; None if there are none.
        work_differs: By how much iterations under one schedule scatter, relative, if that is more than equal work does;
            0: their work is equal, or it is not known.
        change_errors: Two standard errors of the changes of time and energy against the baseline; None: not known.
    """

    measured: Figures | None
    baseline: Figures | None
    work_differs: float = 0.0
    change_errors: tuple[float | None, float | None] = (None, None)


def savings_of(data: JobData, *, any_work: bool = False) -> Savings:
    """Returns what the schedule in force saves.

    Where the scheduler knows what the plan in force saves, corrected for the work of each iteration, the baseline is
    the work of the measured iterations at max clocks. Otherwise means are compared, of steps with and without a turn or
    of two windows. If iterations differ in work, that is done only with `any_work`.
    """
    window = data.judged
    alike = [other for other in data.windows if window is not None and other.schedules == window.schedules]
    measured = next((figures for other in reversed(alike) if (figures := _figures(other)) is not None), None)
    without = next((figures for other in reversed(alike) if (figures := _figures(other, follow=False))), None)
    work_differs = _work_differs(data)
    if measured is None:
        return Savings(None, without or _baseline(data), work_differs)
    if window is not None and data.at_max_clocks(window):
        baseline: Figures | None = measured  # any difference from an earlier window is an error of the energy counters
    elif (baseline := _same_work(data, measured)) is None and (any_work or not work_differs):
        baseline = without or _baseline(data)
    if baseline is None:
        return Savings(measured, None, work_differs)
    time_error = _twice(measured.span_s, baseline.span_s, measured.time_error, baseline.time_error)
    energy_error = _twice(measured.energy_j, baseline.energy_j, measured.energy_error, baseline.energy_error)
    if window is not None and window.by_hand and window.index.turns and not window.index.source.check:
        share = share_of(window.index.turns)  # of ranks and steps; in the others, default clocks
        time_error, energy_error = (error and share * error for error in (time_error, energy_error))
        pairs = {name: (getattr(baseline, name), getattr(measured, name)) for name in ("time_s", "energy_j", "span_s")}
        measured = measured._replace(**{name: base + share * (now - base) for name, (base, now) in pairs.items()})
    return Savings(measured, baseline, work_differs, (time_error, energy_error))


def _work_differs(data: JobData) -> float:
    """Returns by how much iterations under one schedule scatter, relative; 0 if equal work scatters as much."""
    spreads = [w.measured.time_spread for w in data.windows if w.measured and w.measured.time_spread is not None]
    typical = median(spreads) if spreads else 0.0
    return typical if typical > _EQUAL_WORK else 0.0


def _same_work(data: JobData, measured: Figures) -> Figures | None:
    """Figures of the measured iterations at max clocks, from what the scheduler believes of the plan in force."""
    found, window = data.compared, data.judged
    if found is None or window is None or window.by_hand or not window.index.stays:
        return None  # a schedule for measuring is not what the scheduler's figures are about
    saved, more = found.energy_saved, found.more_time
    if saved is None or more is None or not (saved < 1 and more > -1):
        return None
    span_s, origin = measured.span_s / (1 + more), "of the same work at max clocks, by what the scheduler has measured"
    return Figures(span_s + measured.time_s - measured.span_s, measured.energy_j / (1 - saved), span_s, origin)


def _figures(window: Window, *, follow: bool = True) -> Figures | None:
    measured = window.measured if follow else window.without
    if measured is None or measured.energy_j is None:
        return None
    origin = f"measured under schedule {window.number}, {counted(measured.iterations, 'iteration')}"
    origin = origin if follow else "of ranks at default clocks, in turns with it"
    origin += "" if any(window.clocks_mhz) else "; clocks were left alone, which counts as max clocks"
    spreads = measured.time_spread, measured.energy_spread
    errors = (None if spread is None else spread / math.sqrt(measured.iterations) for spread in spreads)
    return Figures(measured.time_s, measured.energy_j, measured.span_s, origin, *errors)


def _twice(now: float, base: float, *errors: float | None) -> float | None:
    """Two standard errors of `now / base - 1`, from the relative errors of both."""
    known = [error for error in errors if error is not None]
    return TIMES_THE_ERROR * math.hypot(*known) * now / base if base and len(known) == len(errors) else None


def _baseline(data: JobData) -> Figures | None:
    """Figures at max clocks, or with clocks left alone, which is nearly the same on most GPUs."""
    candidates = [w for w in data.windows if w.measured is not None and w.measured.energy_j is not None]
    highest = [w for w in candidates if w.schedules and data.at_max_clocks(w)]
    return next((_figures(w) for w in highest or candidates if highest or not any(w.clocks_mhz)), None)


# ---- all iterations so far


class JobTotal(NamedTuple):
    """All iterations of a job so far, profiling included; `more_...`: beyond max clocks, if `compared`.

    `known` iterations ran under measured schedules; all other iterations count like the mean of these schedules.
    """

    iterations: int
    time_s: float
    energy_j: float
    more_time_s: float
    more_energy_j: float
    compared: bool
    known: int


def total_of(data: JobData, savings: Savings) -> JobTotal | None:
    """Returns the total of a job; None while no energy of an iteration is known."""
    if (loads := data.loads) is not None and loads.energy_j:
        late, saved = loads.late or 0.0, loads.saved or 0.0
        more = late / (1 + late) * loads.time_s, -loads.energy_j * saved / (1 - saved) if saved < 1 else 0.0
        by_hand = any(window.by_hand for window in data.windows)  # which loads did not measure
        is_compared = None not in (loads.saved, loads.late) and not by_hand
        return JobTotal(loads.steps, loads.time_s, loads.energy_j, *more, is_compared, loads.steps)
    spans = steps_of(data)
    energies = [(w.measured.time_s, w.measured.energy_j) for w in data.windows if w.measured and w.measured.energy_j]
    if not energies or not spans:
        return None
    # Iterations that differ in work cannot be compared with those that were measured at max clocks.
    baseline = None if savings.work_differs else savings.baseline
    sums, measured, mean = np.zeros((2, 2)), 0, np.mean(energies, axis=0)
    for window, count in spans:
        found = window.measured if window is not None else None
        now = mean
        if found is not None and found.energy_j is not None:
            now, measured = np.array((found.time_s, found.energy_j)), measured + count
        sums += count * np.array([now, now - (baseline[:2] if baseline is not None else now)])
    (time_s, energy_j), (more_time_s, more_energy_j) = sums.tolist()
    iterations, energy_j = sum(count for _, count in spans), data.energy_j or energy_j
    return JobTotal(iterations, time_s, energy_j, more_time_s, more_energy_j, baseline is not None, measured)


def steps_of(data: JobData) -> list[tuple[Window | None, int]]:
    """Returns how many iterations ran under each schedule so far, and at default clocks.

    None stands for steps without a schedule; a window without schedules, for the ranks that had no turn in its steps.
    """
    counts: list[tuple[Window | None, int]] = []
    for window, first, end, share in spans_of(data, data.last_step + 1):
        following = round(share * (end - first))
        without = None if window is None else replace(window, schedules={}, measured=window.without)
        counts += [(window, following), (without, end - first - following)]
    return [(window, count) for window, count in counts if count]
