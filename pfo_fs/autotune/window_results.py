"""Figures of the whole job from the results of one measuring window. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median, median_low, stdev

from pfo_fs.autotune.job_layout import JobLayout
from pfo_fs.models import ProfilingResult

_NOISE_OF_ONE_ITERATION = 0.002
"""Relative: the assumed noise if a window has a single iteration."""


def measured_results(results: Sequence[ProfilingResult]) -> list[ProfilingResult]:
    """Returns the results that hold iterations, all of which took some time."""
    return [result for result in results if result.iter_time and min([*result.iter_time, *result.iter_span]) > 0]


def span_of(result: ProfilingResult) -> float:
    """Returns the mean time in s until a rank had run its last instruction."""
    return fmean(result.iter_span or result.iter_time)


def busy_s(result: ProfilingResult) -> float:
    """Returns the mean time that a rank spends in instructions per iteration, in s."""
    totals = [
        sum(sum(rows[number]) for rows in result.time_breakdown.values() if number < len(rows))
        for number in range(len(result.iter_time))
    ]
    return fmean(totals) if totals else 0.0


def first_stage_results(results: Sequence[ProfilingResult], layout: JobLayout) -> dict[int, ProfilingResult]:
    """Returns, for each pipeline, the result of a rank of its first stage, which measures all of an iteration."""
    found: dict[int, ProfilingResult] = {}
    for result in results:
        place = layout.place[result.rank]
        if place.pp_rank == 0:
            found.setdefault(place.dp_rank, result)
    return found


def iteration_spans(results: Sequence[ProfilingResult], layout: JobLayout) -> dict[int, list[float]]:
    """Returns, for each pipeline, the time in s of each iteration until its last instruction had ended.

    In zero-bubble schedules this is not an instruction of the first stage, so the rank that ends last counts. Pipelines
    without a result of the first stage are left out.
    """
    spans: dict[int, list[Sequence[float]]] = {pipeline: [] for pipeline in first_stage_results(results, layout)}
    for result in results:
        of_pipeline = spans.get(layout.place[result.rank].dp_rank)
        if of_pipeline is not None:
            of_pipeline.append(result.iter_span or result.iter_time)
    return {pipeline: [max(each) for each in zip(*of_ranks, strict=False)] for pipeline, of_ranks in spans.items()}


def job_energy_j(results: Sequence[ProfilingResult], world_size: int) -> float:
    """Returns the energy of an iteration on all GPUs, in J; GPUs without a result count with the average."""
    energies = [fmean(result.iter_energy) for result in results if result.iter_energy]
    return fmean(energies) * world_size if energies else 0.0


def job_energy_error(results: Sequence[ProfilingResult]) -> float:
    """Returns the standard error of `job_energy_j`, relative: counters tick seldom, and iterations differ."""
    totals = [sum(of_ranks) for of_ranks in zip(*(result.iter_energy for result in results), strict=False)]
    if len(totals) < 2 or sum(totals) <= 0:
        return 0.0
    return float(stdev(totals) / fmean(totals) / math.sqrt(len(totals)))


def relative_noise(spans: Mapping[int, Sequence[float]]) -> float:
    """Returns the relative standard deviation of iteration times, the largest of all pipelines."""
    return max(
        (stdev(values) / fmean(values) if len(values) > 1 else _NOISE_OF_ONE_ITERATION for values in spans.values()),
        default=0.0,
    )


@dataclass(frozen=True)
class FullSpeed:
    """An iteration at the highest clocks; plans are compared with it.

    Attributes:
        span_s: Time until the last instruction has ended.
        energy_j: Energy of all GPUs of the job; 0 if it cannot be read.
        tail_s: Time from the end of the last instruction to the end of the step: optimizer, all-reduce and the like.
        windows: Number of windows that `span_s` is the mean of.
    """

    span_s: float
    energy_j: float
    tail_s: float
    windows: int = 1

    @property
    def step_s(self) -> float:
        """Time of the whole step."""
        return self.span_s + self.tail_s


def pooled(full_speed: FullSpeed, span_s: float, error: float) -> FullSpeed:
    """Returns the mean of windows at the highest clocks; the first ones if the other took another time.

    Args:
        full_speed: The windows so far.
        span_s: The time of another one until its last instruction has ended, in s.
        error: The relative difference that noise explains.
    """
    if abs(span_s / full_speed.span_s - 1) > error:
        return full_speed
    windows = full_speed.windows + 1
    return replace(full_speed, span_s=full_speed.span_s + (span_s - full_speed.span_s) / windows, windows=windows)


def full_speed_of(results: Sequence[ProfilingResult], layout: JobLayout) -> FullSpeed | None:
    """Returns time and energy of a window at the highest clocks; None if no pipeline's first stage has a result."""
    spans = iteration_spans(results, layout)
    if not spans:
        return None
    first = first_stage_results(results, layout)
    return FullSpeed(
        span_s=median_low(fmean(values) for values in spans.values()),  # of two pipelines, the faster one
        energy_j=job_energy_j(results, layout.job_info.world_size),
        tail_s=max(0.0, median(fmean(result.iter_time) - fmean(spans[pipeline]) for pipeline, result in first.items())),
    )
