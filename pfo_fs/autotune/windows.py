"""One measuring window as arrays: what each instruction of each measured pipeline took, and at which clock it ran."""

import math
from collections.abc import Mapping, Sequence
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
"""A run whose mean clock differs by more than this share from the scheduled clock did not run at it: there was no time
for the change, or the next clock was requested early."""


@dataclass(frozen=True)
class Window:
    """What was measured while one schedule was in force.

    Arrays have the shape (iterations, nodes, pipelines), with the nodes of `Pipeline.instructions`, unless stated.

    Attributes:
        pipelines: The data-parallel rank of each pipeline.
        steps: The step of each iteration.
        times_s: Duration of each instruction.
        follows: Whether each rank followed the schedule, (iterations, ranks of a pipeline, pipelines); if not, it ran
            at default clocks, which count as the highest ones.
        clocks_mhz: The clock that was wanted; the highest clock where none was set.
        ran_mhz: Mean clock at which each instruction ran where it is known when clocks act; else the schedule's clock.
        at_clock: Whether the instruction ran at about the schedule's clock from begin to end.
        or_mhz: Other clock at which the instruction may have run: the clock before, where it is not learned yet when
            its own clock acts, or the next clock, where that is so for the next one; 0 elsewhere.
        spans_s: Time from an iteration's begin to the end of a pipeline's last instruction, (iterations, pipelines).
        step_s: Time of the whole iteration, (iterations, pipelines).
        first_rank_s: Time to the end of the last instruction of the first rank, mean over the iterations,
            (pipelines,). In zero-bubble schedules another rank may end later.
        energies_j: Energy of each rank's GPUs in each iteration, shape as `follows`; 0 where it is not known.
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
    """What one rank measured in each step: its runs, the two times of the whole iteration, and its energy."""

    runs: dict[int, list[RunSample]]
    spans_s: dict[int, float]
    step_s: dict[int, float]
    energies_j: dict[int, float]


class _Column(NamedTuple):
    """One pipeline: what its ranks measured, by stage, and what each stage ran."""

    dp_rank: int
    results: list[list[ProfilingResult]]
    measured: list[list[_RankRuns]]
    ran: list[list[RunInstruction]]

    @property
    def steps(self) -> set[int]:
        """The steps that all its ranks have measured."""
        return set.intersection(*(set(rank.runs) for of_stage in self.measured for rank in of_stage))


def window_of(
    layout: JobLayout,
    pipeline: Pipeline,
    results: Sequence[ProfilingResult],
    schedules: Sequence[FrequencySchedule],
    turns: Sequence[int] = (),
) -> Window | None:
    """Returns a window of the pipelines that were measured on all stages; None if there is none.

    Args:
        pipeline: The instructions that each pipeline runs.
        schedules: The schedules in force; a rank without one ran at its default clock, which counts as the highest one.
        turns: Which ranks followed the schedules in which step, as in `Term`.
    """
    columns = _columns(layout, pipeline, results, schedules)
    if not columns:
        return None
    common = set.intersection(*(column.steps for column in columns))
    if not common:  # no step was measured in all pipelines: the pipeline with most steps counts
        columns = [max(columns, key=lambda column: len(column.steps))]
        common = columns[0].steps
    nodes = len(pipeline.instructions)
    steps = sorted(common)[-max(1, _MOST_VALUES // (nodes * len(columns))) :]
    of_nodes = len(steps), nodes, len(columns)
    of_ranks, of_pipelines = (len(steps), len(pipeline.orders), len(columns)), (len(steps), len(columns))
    window = Window(
        pipelines=tuple(column.dp_rank for column in columns),
        steps=tuple(steps),
        times_s=np.zeros(of_nodes),
        follows=np.zeros(of_ranks, bool),
        clocks_mhz=np.zeros(of_nodes),
        ran_mhz=np.zeros(of_nodes),
        at_clock=np.zeros(of_nodes, bool),
        or_mhz=np.zeros(of_nodes),
        spans_s=np.zeros(of_pipelines),
        step_s=np.zeros(of_pipelines),
        first_rank_s=np.zeros(len(columns)),
        energies_j=np.zeros(of_ranks),
    )
    for number, column in enumerate(columns):
        for pp_rank in range(len(pipeline.orders)):
            nodes_of_rank = slice(*pipeline.first_nodes[pp_rank : pp_rank + 2])
            top_mhz = layout.clocks_of_stage[pp_rank][0]
            _fill(window, number, column, pp_rank, nodes_of_rank, top_mhz, turns)
    return window


def _columns(
    layout: JobLayout,
    pipeline: Pipeline,
    results: Sequence[ProfilingResult],
    schedules: Sequence[FrequencySchedule],
) -> list[_Column]:
    """The pipelines that have measured a step on all stages."""
    in_force = {schedule.rank: schedule for schedule in schedules}
    by_place: dict[int, dict[int, list[ProfilingResult]]] = {}
    for result in results:
        info = layout.place[result.rank]
        by_place.setdefault(info.dp_rank, {}).setdefault(info.pp_rank, []).append(result)
    stages = range(len(pipeline.orders))
    complete = [dp_rank for dp_rank in sorted(by_place) if len(by_place[dp_rank]) == len(stages)]
    columns = []
    for dp_rank in complete[:: max(1, -(-len(complete) // MOST_PIPELINES))]:
        of_stages = [by_place[dp_rank][stage] for stage in stages]
        ran = [layout.run_by(of_stage[0].rank, in_force.get(of_stage[0].rank)) for of_stage in of_stages]
        if all(len(order) == len(own) for order, own in zip(pipeline.orders, ran, strict=True)):
            measured = [[_runs_of(result, ran[stage]) for result in of_stages[stage]] for stage in stages]
            columns.append(_Column(dp_rank, of_stages, measured, ran))
    return [column for column in columns if column.steps]


def _fill(
    window: Window, number: int, column: _Column, pp_rank: int, nodes: slice, top_mhz: int, turns: Sequence[int]
) -> None:
    """Fills in what the ranks of one stage have measured in one column of a window."""
    results, of_rank = column.results[pp_rank], column.measured[pp_rank]
    planned = np.array([clock or top_mhz for _, _, clock in column.ran[pp_rank]], float)
    wanted_mhz = {True: planned, False: np.full(len(planned), float(top_mhz))}
    sees_clocks = any(_sees_clocks(result) for result in results)
    unknown_s = LATENCY_UNKNOWN_S if sees_clocks else CLOCK_UNKNOWN_S
    ends_at = 0.0  # the clock at the end of the iteration before; if it stays, the next iteration begins with it
    half = half_of(pp_rank, column.dp_rank)
    for row, step in enumerate(window.steps):
        window.follows[row, pp_rank, number] = has_turn = follows(turns, step, half)
        mhz, last_mhz = wanted_mhz[has_turn], wanted_mhz[follows(turns, step - 1, half)][-1]
        # Between iterations, the next one's first clock is requested, or the default clock. If the first instruction
        # follows at once, it may still run at the clock of the last one.
        begins_at = float(last_mhz) if sees_clocks and mhz[0] == top_mhz else top_mhz
        learned, next_mhz = _learned(results, mhz) & sees_clocks, np.roll(mhz, -1)
        learned_next = np.roll(learned, -1) | (next_mhz == mhz)
        runs = [rank.runs[step] for rank in of_rank]
        seconds = np.array([[run.time_s for run in of_one] for of_one in runs]).mean(axis=0)
        seen = np.array([[run.clock_mhz or top_mhz for run in of_one] for of_one in runs], float)
        at = seen.min(axis=0) if sees_clocks else mhz  # GPUs compute together: the slowest decides
        stayed = bool(sees_clocks and row and ends_at == mhz[0] == at[0])
        ends_at = at[-1]
        before, since_s = _since_change(mhz, mhz[0] if stayed else begins_at, seconds)
        other = np.where(~learned & (before > 0) & (since_s < unknown_s), before, 0.0)
        # The next clock is requested early, and it is not known either when it acts within the run before.
        other = np.where(~learned_next & (other == 0) & (np.round(at) != mhz), next_mhz, other)
        unsure = other > 0
        window.times_s[row, nodes, number], window.clocks_mhz[row, nodes, number] = seconds, mhz
        window.or_mhz[row, nodes, number] = other
        window.at_clock[row, nodes, number] = (np.abs(at / mhz - 1) <= _ABOUT_THE_SAME) & ~unsure
        window.ran_mhz[row, nodes, number] = np.where(unsure, mhz, at)
        span_s = max(rank.spans_s[step] for rank in of_rank)
        window.spans_s[row, number] = max(window.spans_s[row, number], span_s)
        if not pp_rank:
            window.first_rank_s[number] += span_s / len(window.steps)
        window.step_s[row, number] = max(window.step_s[row, number], *(rank.step_s[step] for rank in of_rank))
        if all(rank.energies_j.get(step, 0.0) > 0 for rank in of_rank):
            window.energies_j[row, pp_rank, number] = sum(rank.energies_j[step] for rank in of_rank)


def _runs_of(result: ProfilingResult, ran: Sequence[RunInstruction]) -> _RankRuns:
    """What one rank measured, by step, without iterations that ran something else than `ran`, or an instruction in 0 s.

    Coarse timers measure 0 s, which has no logarithm, and is no multiple of the time at another clock.
    """
    steps = steps_of(result)
    numbered = numbered_iterations(result, ran)
    runs = {steps[number]: of_step for number, of_step in numbered if all(run.time_s > 0 for run in of_step)}
    per_step = result.iter_span or result.iter_time, result.iter_time, result.iter_energy
    return _RankRuns(runs, *(dict(zip(steps, values, strict=False)) for values in per_step))


def _sees_clocks(result: ProfilingResult) -> bool:
    """Whether a rank's clock process learns when clocks act, so that the mean clocks of its runs tell something."""
    return result.switching is not None and result.switching.mode != "launch" and bool(result.clock_breakdown)


def _learned(results: Sequence[ProfilingResult], mhz: Array) -> Array:
    """For each instruction, whether the clock processes of its ranks have learned when its clock acts."""
    known = [set() if one.switching is None else set(one.switching.latencies_s) for one in results]
    return np.array([all(clock in each for each in known) for clock in mhz.tolist()])


def _since_change(mhz: Array, first_mhz: float, times_s: Array) -> tuple[Array, Array]:
    """For each instruction of a rank, the clock before the latest change, and how long after that change it begins.

    The clock is 0 before the first change; the time, in s, is without waiting. The iteration begins at `first_mhz`.
    """
    changes, before, since_s, last = [], 0.0, math.inf, first_mhz
    for clock, seconds in zip(mhz.tolist(), times_s.tolist(), strict=True):
        if clock != last:
            before, since_s, last = last, 0.0, clock
        changes.append((before, since_s))
        since_s += seconds
    return tuple(np.array(changes).T)


def kinds_of(pipeline: Pipeline) -> tuple[list[tuple[int, str]], Array]:
    """Returns the kinds of instructions, sorted, and the number of each node's kind."""
    kinds = sorted({(i.stage, i.name) for i in pipeline.instructions})
    number: Mapping[tuple[int, str], int] = {kind: place for place, kind in enumerate(kinds)}
    return kinds, np.array([number[i.stage, i.name] for i in pipeline.instructions])
