"""One measuring window as arrays: what each instruction of each measured pipeline took, and at which clock it ran."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pfo_fs.arrays import Array, np
from pfo_fs.autotune.job_layout import JobLayout, RunInstruction, RunSample, numbered_iterations, steps_of
from pfo_fs.models import FrequencySchedule, ProfilingResult
from pfo_fs.planner import Pipeline
from pfo_fs.turns import follows, half_of

MOST_PIPELINES = 32
"""At most 32 pipelines of a window are kept: their iterations show how the slowest of them varies."""
_MOST_VALUES = 2_000_000
"""At most this many durations of a window are kept (16 MB); the latest iterations, as they are most like the next."""
CLOCK_UNKNOWN_S = 0.03
"""An instruction that begins within this time after a request of a clock may still have run at the clock before, where
no clock process knows when the clock acts; twenty times the usual latency of an A100."""
LATENCY_UNKNOWN_S = 0.1
"""The same for a clock of which the clock process has not learned yet when it acts: published latencies of GPUs are 1
to 100 ms."""
_ABOUT_THE_SAME = 0.1
"""Relative: a run whose mean clock differs by more from the schedule did not run at its clock: there was no time for
the change, or the next clock was requested early."""


@dataclass(frozen=True)
class Window:
    """What was measured while one schedule was in force.

    Arrays have a row per iteration, then one per node (as in `Pipeline.instructions`), then one per pipeline.

    Attributes:
        pipelines: The data-parallel rank of each pipeline.
        steps: The step of each iteration.
        times_s: Duration of each instruction, shape (iterations, nodes, pipelines).
        follows: Whether each rank followed the schedule, shape (iterations, ranks of a pipeline, pipelines); if not, it
            ran at default clocks, which count as the highest ones.
        clocks_mhz: The clock that was wanted, shape as `times_s`; the highest clock where none was set.
        ran_mhz: Mean clock at which each instruction ran, as far as it is known when clocks act; else the schedule's.
        at_clock: Whether the instruction ran at the schedule's clock, or about so, from begin to end.
        or_mhz: Where no clock process has learned yet when the clock acts, or the next one: the clock before, which
            may still have been in force, or the next one; 0 elsewhere; shape (iterations, nodes, pipelines).
        spans_s: Time from an iteration's begin to the end of a pipeline's last instruction; shape (iterations,
            pipelines).
        step_s: Time of the whole iteration, shape (iterations, pipelines).
        first_rank_s: Time to the end of the last instruction of the first rank, mean over the iterations; shape
            (pipelines,). In zero-bubble schedules another rank may end later.
        energies_j: Energy of each rank's GPUs in each iteration, in J, shape as `follows`; 0 where it is not known.
    """

    pipelines: tuple[int, ...]
    steps: tuple[int, ...]
    times_s: Array
    follows: Array
    clocks_mhz: Array
    ran_mhz: Array
    at_clock: Array
    or_mhz: Array
    spans_s: Array
    step_s: Array
    first_rank_s: Array
    energies_j: Array

    @property
    def iterations(self) -> int:
        """Number of iterations."""
        return len(self.steps)

    @property
    def tail_s(self) -> float:
        """Mean time from the end of the last instruction of all pipelines to the end of the iteration, in s."""
        return max(0.0, float((self.step_s.max(axis=1) - self.spans_s.max(axis=1)).mean()))


def measured_results(results: Sequence[ProfilingResult]) -> list[ProfilingResult]:
    """Returns the results that hold iterations, all of which took some time."""
    return [result for result in results if result.iter_time and min([*result.iter_time, *result.iter_span]) > 0]


class _RankRuns(NamedTuple):
    """What one rank measured: for each step its runs, the two times of the whole iteration, and its energy."""

    runs: dict[int, list[RunSample]]
    spans_s: dict[int, float]
    step_s: dict[int, float]
    energies_j: dict[int, float]


def window_of(
    layout: JobLayout,
    pipeline: Pipeline,
    results: Sequence[ProfilingResult],
    schedules: Sequence[FrequencySchedule],
    is_taken: Callable[[int], bool],
    turns: Sequence[int] = (),
) -> Window | None:
    """Returns a window of the pipelines that were measured on all stages; None if there is none.

    Args:
        layout: The job.
        pipeline: The instructions that each pipeline runs.
        results: The results of all ranks.
        schedules: The schedules in force; a rank without one ran at its default clock, which counts as the highest one.
        is_taken: Whether the results of a rank are used.
        turns: Which ranks followed the schedules in which step, as in `Term`.
    """
    in_force = {schedule.rank: schedule for schedule in schedules}
    by_place: dict[int, dict[int, list[ProfilingResult]]] = {}
    for result in results:
        if is_taken(result.rank):
            info = layout.place[result.rank]
            by_place.setdefault(info.dp_rank, {}).setdefault(info.pp_rank, []).append(result)
    stages = len(pipeline.orders)
    complete = [dp for dp in sorted(by_place) if len(by_place[dp]) == stages]
    chosen = complete[:: max(1, -(-len(complete) // MOST_PIPELINES))]
    columns: list[tuple[int, list[list[_RankRuns]], list[list[RunInstruction]]]] = []
    for dp in chosen:
        ran = [layout.run_by(by_place[dp][pp][0].rank, in_force.get(by_place[dp][pp][0].rank)) for pp in range(stages)]
        rows = [[_runs_of(result, ran[pp]) for result in by_place[dp][pp]] for pp in range(stages)]
        if all(len(order) == len(own) for order, own in zip(pipeline.orders, ran, strict=True)):
            columns.append((dp, rows, ran))
    columns = [each for each in columns if _steps(each[1])]
    if not columns:
        return None
    common = set.intersection(*(_steps(rows) for _, rows, _ in columns))
    if not common:  # pipelines that were measured in other iterations: the one that was measured longest counts
        columns = [max(columns, key=lambda each: len(_steps(each[1])))]
        common = _steps(columns[0][1])
    nodes = len(pipeline.instructions)
    steps = sorted(common)[-max(1, _MOST_VALUES // (nodes * len(columns))) :]
    shape = len(steps), nodes, len(columns)
    times, ran_mhz, or_mhz = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    at_clock: Array = np.zeros(shape, bool)
    clocks = np.zeros(shape)
    spans, step_s = np.zeros((shape[0], shape[2])), np.zeros((shape[0], shape[2]))
    first_rank_s, energies_j = np.zeros(shape[2]), np.zeros((shape[0], stages, shape[2]))
    follow: Array = np.zeros(energies_j.shape, bool)
    for column, (dp, rows, ran_by_stage) in enumerate(columns):
        for pp, (of_rank, own) in enumerate(zip(rows, ran_by_stage, strict=True)):
            first, last = pipeline.first_nodes[pp], pipeline.first_nodes[pp + 1]
            top_mhz = layout.clocks_of_stage[pp][0]
            planned = np.array([clock or top_mhz for _, _, clock in own], float)
            wanted_mhz = {True: planned, False: np.full(len(own), float(top_mhz))}
            sees_clocks = any(_sees_clocks(result) for result in by_place[dp][pp])
            unknown_s = LATENCY_UNKNOWN_S if sees_clocks else CLOCK_UNKNOWN_S
            ends_at = 0.0  # the clock at the end of the iteration before, if it stays the next one begins there
            half = half_of(pp, dp)
            for number, step in enumerate(steps):
                follow[number, pp, column] = has_turn = follows(turns, step, half)
                mhz, last_mhz = wanted_mhz[has_turn], wanted_mhz[follows(turns, step - 1, half)][-1]
                clocks[number, first:last, column] = mhz
                begins_at = _begins_at(mhz, last_mhz, top_mhz, sees_clocks)
                before = np.array(_before_change(mhz, begins_at))
                learned, next_mhz = _learned(by_place[dp][pp], mhz) & sees_clocks, np.roll(mhz, -1)
                learned_next = np.roll(learned, -1) | (next_mhz == mhz)
                if all(one.energies_j.get(step, 0.0) > 0 for one in of_rank):
                    energies_j[number, pp, column] = sum(one.energies_j[step] for one in of_rank)
                each = [one.runs[step] for one in of_rank]
                seconds = np.array([[run.time_s for run in runs] for runs in each])
                seen = np.array([[run.clock_mhz or top_mhz for run in runs] for runs in each], float)
                times[number, first:last, column] = seconds.mean(axis=0)
                at = seen.min(axis=0) if sees_clocks else mhz  # GPUs compute together: the slowest decides
                stayed = bool(sees_clocks and number and ends_at == mhz[0] == at[0])
                since = _since_change(mhz, mhz[0] if stayed else begins_at, seconds.mean(axis=0))
                ends_at = at[-1]
                other = np.where(~learned & (before > 0) & (since < unknown_s), before, 0.0)
                # The next clock is requested early: when it acts within the run before is as unknown.
                other = np.where(~learned_next & (other == 0) & (np.round(at) != mhz), next_mhz, other)
                unsure = other > 0
                or_mhz[number, first:last, column] = other
                at_clock[number, first:last, column] = (np.abs(at / mhz - 1) <= _ABOUT_THE_SAME) & ~unsure
                ran_mhz[number, first:last, column] = np.where(unsure, mhz, at)
                spans[number, column] = max(spans[number, column], *(one.spans_s[step] for one in of_rank))
                if not pp:
                    first_rank_s[column] += max(one.spans_s[step] for one in of_rank) / len(steps)
                step_s[number, column] = max(step_s[number, column], *(one.step_s[step] for one in of_rank))
    pipelines = tuple(dp for dp, _, _ in columns)
    return Window(
        pipelines,
        tuple(steps),
        times,
        follow,
        clocks,
        ran_mhz,
        at_clock,
        or_mhz,
        spans,
        step_s,
        first_rank_s,
        energies_j,
    )


def _runs_of(result: ProfilingResult, ran: Sequence[RunInstruction]) -> _RankRuns:
    """What one rank measured, by step, without iterations that ran something else than `ran`, or an instruction in 0 s.

    Coarse timers measure 0 s, which has no logarithm, and is no multiple of the time at another clock.
    """
    steps = steps_of(result)
    spans = result.iter_span or result.iter_time
    numbered = numbered_iterations(result, ran)
    runs = {steps[number]: each for number, each in numbered if all(run.time_s > 0 for run in each)}
    return _RankRuns(
        runs,
        dict(zip(steps, spans, strict=False)),
        dict(zip(steps, result.iter_time, strict=False)),
        dict(zip(steps, result.iter_energy, strict=False)),
    )


def _steps(rows: Sequence[Sequence[_RankRuns]]) -> set[int]:
    """The steps that all ranks of a pipeline have measured."""
    return set.intersection(*(set(one.runs) for of_rank in rows for one in of_rank))


def _sees_clocks(result: ProfilingResult) -> bool:
    """Whether a rank's clock process learns when clocks act, so that the mean clocks of its runs tell something."""
    return result.switching is not None and result.switching.mode != "launch" and bool(result.clock_breakdown)


def _learned(results: Sequence[ProfilingResult], mhz: Array) -> Array:
    """For each instruction, whether the clock processes of its ranks have learned when its clock acts."""
    known = [set() if one.switching is None else set(one.switching.latencies_s) for one in results]
    return np.array([all(clock in each for each in known) for clock in mhz.tolist()])


def _begins_at(mhz: Array, last_mhz: float, top_mhz: float, sees_clocks: bool) -> float:
    """The clock before the first change of an iteration, in MHz.

    Between iterations, the highest clock is requested. Where its first instruction follows at once, it may still run at
    the clock of the last one, `last_mhz`.
    """
    return float(last_mhz) if sees_clocks and mhz[0] == top_mhz else top_mhz


def _before_change(mhz: Array, begins_at: float) -> list[float]:
    """For each instruction of a rank, the clock before the latest change; 0 while there was none."""
    found, before, last = [], 0.0, begins_at
    for clock in mhz.tolist():
        if clock != last:
            before, last = last, clock
        found.append(before)
    return found


def _since_change(mhz: Array, first_mhz: float, times_s: Array) -> Array:
    """For each instruction of a rank, how long it begins after the latest change, without waiting, in s.

    Args:
        mhz: The clock of each.
        first_mhz: The clock at which the iteration begins.
        times_s: The duration of each, in s.
    """
    found, since_s, last = [], math.inf, first_mhz
    for clock, seconds in zip(mhz.tolist(), times_s.tolist(), strict=True):
        if clock != last:
            since_s, last = 0.0, clock
        found.append(since_s)
        since_s += seconds
    return np.array(found)


def kinds_of(pipeline: Pipeline) -> tuple[list[tuple[int, str]], Array]:
    """Returns the kinds of instructions, sorted, and the number of each node's kind."""
    kinds = sorted({(i.stage, i.name) for i in pipeline.instructions})
    number: Mapping[tuple[int, str], int] = {kind: place for place, kind in enumerate(kinds)}
    return kinds, np.array([number[i.stage, i.name] for i in pipeline.instructions])
