"""What a whole job took, profiling included, and what it would have taken at the highest clocks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean

from pfo_fs.reports.collect import JobData, Window
from pfo_fs.reports.forecast import Predicted
from pfo_fs.reports.headline import Headline


@dataclass(frozen=True)
class Part:
    """Some iterations of a job.

    Attributes:
        iterations: How many.
        time_s, energy_j: What they took, all GPUs together.
        more_time_s, more_energy_j: By how much that is more than at the highest clocks; negative: less.
    """

    iterations: int = 0
    time_s: float = 0.0
    energy_j: float = 0.0
    more_time_s: float = 0.0
    more_energy_j: float = 0.0

    def __add__(self, other: Part) -> Part:
        return Part(
            self.iterations + other.iterations,
            self.time_s + other.time_s,
            self.energy_j + other.energy_j,
            self.more_time_s + other.more_time_s,
            self.more_energy_j + other.more_energy_j,
        )


@dataclass(frozen=True)
class JobTotal:
    """All iterations of a job so far.

    Attributes:
        profiling: Those under schedules for measuring, and those before the first schedule.
        other: All others.
        compared: Whether figures of the highest clocks are known; else `more_time_s` and `more_energy_j` are 0.
        known: Number of iterations under schedules that were measured; figures of the others are guessed from these.
    """

    profiling: Part
    other: Part
    compared: bool
    known: int

    @property
    def whole(self) -> Part:
        """All iterations."""
        return self.profiling + self.other


def total_of(data: JobData, headline: Headline, predictions: Mapping[int, Predicted]) -> JobTotal | None:
    """Returns the total of a job; None while no energy of an iteration is known."""
    spans = steps_of(data)
    figures = {window.number: _figures(window, predictions) for window in data.windows}
    known_figures = [found for found in figures.values() if found is not None]
    if not known_figures or not spans:
        return None
    guess = fmean(time_s for time_s, _ in known_figures), fmean(energy_j for _, energy_j in known_figures)
    # Iterations that differ in work are not those that were measured at the highest clocks.
    against = None if headline.work_differs else headline.against()
    profiling, other, known = Part(), Part(), 0
    for window, count in spans:
        found = figures[window.number] if window is not None else None
        time_s, energy_j = found or guess
        known += count if window is not None and window.measured is not None and found is not None else 0
        part = Part(
            count,
            count * time_s,
            count * energy_j,
            count * (time_s - against.time_s) if against is not None else 0.0,
            count * (energy_j - against.energy_j) if against is not None else 0.0,
        )
        if window is None or window.index.steps:
            profiling += part
        else:
            other += part
    return JobTotal(profiling, other, against is not None, known)


def steps_of(data: JobData) -> list[tuple[Window | None, int]]:
    """Returns how many iterations ran under each schedule so far, and before the first one (None)."""
    end = data.last_step + 1
    found: list[tuple[Window | None, int]] = []
    first = min(data.windows[0].index.start_step, end) if data.windows else 0
    if first > 0:
        found.append((None, first))
    for window in data.windows:
        until = end if window.end_step is None else min(end, window.end_step)
        if until > window.index.start_step:
            found.append((window, until - window.index.start_step))
    return found


def time_of(window: Window, predictions: Mapping[int, Predicted]) -> float | None:
    """Returns the time (s) of an iteration under a schedule, measured or else predicted; None if it is not known."""
    if window.measured is not None:
        return window.measured.time_s
    predicted = predictions.get(window.number)
    return predicted.time_s if predicted is not None else None


def _figures(window: Window, predictions: Mapping[int, Predicted]) -> tuple[float, float] | None:
    measured, predicted = window.measured, predictions.get(window.number)
    if measured is not None and measured.energy_j is not None:
        return measured.time_s, measured.energy_j
    return None if predicted is None else (predicted.time_s, predicted.energy_j)
