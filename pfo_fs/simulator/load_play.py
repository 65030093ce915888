"""Plays a traced job whose clocks come from loads, step by step, beside the same steps at max clocks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from pfo_fs.arrays import Array, np
from pfo_fs.errors import PlanError
from pfo_fs.loads.choice import LOST_TIME
from pfo_fs.loads.coordinator import LoadCoordinator
from pfo_fs.loads.durations import StepShape
from pfo_fs.loads.step_rows import EndedStep, Reading, load_of_step, make_row
from pfo_fs.planner import make_pipeline
from pfo_fs.simulator.cluster import Cluster, Played
from pfo_fs.simulator.traces import Trace
from pfo_fs.user_files import csv_table

_SHOWN = 10
"""Without a file of loads, the load of a micro-batch is its place along the direction in which durations vary most in
the first ten steps of the trace. In these steps, clocks do not come from loads yet."""
_MOST_LOAD = 1e18
"""The largest load that a file may have: the square of a billion tokens, longer than any sequence."""
_LOAD_COLUMNS = ("step", "dp_rank", "micro_batch", "load")


class LoadSummary(NamedTuple):
    """A run whose clocks came from loads; savings and times are relative to the same steps at max clocks.

    Attributes:
        run_saved, run_late: Energy saved and time lost over the whole run.
        plan_saved, plan_late: The same over all steps of the trace, with what loads had taught by the end of the run.
        worst_step_late: By how much one of these steps took longer than at max clocks, relative, at most.
        balanced: By how much shorter steps would be if all pipelines had the mean of their work, relative; workers that
            are permanently slow stay slow.
        begins_at: The first step with a lower clock; None: there was none.
        status_text: What was known at the end.
    """

    iterations: int
    run_saved: float
    run_late: float
    plan_saved: float
    plan_late: float
    worst_step_late: float
    balanced: float
    begins_at: int | None
    margin: float
    status_text: str

    @classmethod
    def of(
        cls, run: Sequence[Compared], plan: Sequence[Compared], steps: Sequence[Compared], decisions: Decisions
    ) -> LoadSummary:
        """Returns the summary of a `run`, of the `plan` over all steps, and of the one of `steps` that lost most."""
        known, worst = decisions.coordinator.state, max(step.time_s / step.full_time_s - 1 for step in steps)
        found = (*_totals(run), *_totals(plan), worst, known.balanced, decisions.begins_at, known.margin, known.text)
        return cls(len(run), *found)


class Compared(NamedTuple):
    """A step, and the same one at max clocks."""

    time_s: float
    full_time_s: float
    energy_j: float
    full_energy_j: float

    @classmethod
    def of(cls, played: Played) -> Compared:
        """Returns the figures of a simulated step."""
        return cls(played.time_s, played.full_time_s, played.energy_j, played.full_energy_j)


def _totals(steps: Sequence[Compared]) -> tuple[float, float]:
    """Energy saved and time lost over some steps, relative."""
    time_s, full_s, energy_j, full_j = np.array(steps).sum(axis=0)
    return float(1 - energy_j / full_j), float(time_s / full_s - 1)


def last_stage(trace: Trace) -> Trace:
    """Returns a trace of the last stage alone: each dp_rank's work as that of a rank without a pipeline."""
    pipeline, stage = trace.pipeline, trace.pipeline.num_stages - 1
    alone = make_pipeline("1f1b", 1, pipeline.num_microbatches)
    place = {(i.name, i.microbatch): node for node, i in enumerate(pipeline.instructions) if i.stage == stage}
    nodes: Array = np.array([place[i.name, i.microbatch] for i in alone.instructions])
    lengths_s = {(0, name): seconds for (of, name), seconds in trace.lengths_s.items() if of == stage}
    return replace(trace, pipeline=alone, lengths_s=lengths_s, table=trace.table[:, nodes])


def loads_of(trace: Trace, source: str) -> Array:
    """Returns the load of each micro-batch: (steps, micro-batches, pipelines, features).

    Args:
        source: "trace": one number per micro-batch, the first principal component of its durations; else the path of a
            CSV file with columns step, dp_rank, micro_batch, load.

    Raises:
        PlanError: The file cannot be read, or lacks a micro-batch of the trace.
    """
    if source == "trace":
        return _shown_loads(trace)[..., None]
    given, micro_batches = _read_loads(Path(source)), range(trace.pipeline.num_microbatches)
    try:
        return np.array(
            [[[[given[step, dp, m]] for dp in trace.dp_ranks] for m in micro_batches] for step in trace.steps]
        )
    except KeyError as error:
        raise PlanError(f"{source}: there is no load for (step, dp_rank, micro_batch) {error}") from None


def _shown_loads(trace: Trace) -> Array:
    """The first principal component of the durations of each micro-batch, 1 in the mean: (steps, micro-batches,
    pipelines).
    """
    instructions = trace.pipeline.instructions
    kinds = sorted({(i.stage, i.name) for i in instructions})
    table: Array = np.ones((len(trace.steps), trace.pipeline.num_microbatches, len(trace.dp_ranks), len(kinds)))
    for node, i in enumerate(instructions):
        table[:, i.microbatch, :, kinds.index((i.stage, i.name))] = trace.table[:, node]
    # Relative to the mean of each kind and pipeline: a slow worker has no more work than others.
    table /= table[:_SHOWN].mean(axis=(0, 1))
    rows = table[:_SHOWN].reshape(-1, len(kinds))
    mean = rows.mean(axis=0)
    directions = np.linalg.svd(rows - mean, full_matrices=False)[2]
    direction = directions[0] * np.sign(directions[0].sum())
    loads: Array = 1 + (table - mean) @ direction / direction.sum()
    return loads


def _read_loads(path: Path) -> Mapping[tuple[int, int, int], float]:
    given: dict[tuple[int, int, int], tuple[float, int]] = {}
    with csv_table(path, _LOAD_COLUMNS, "a table of loads") as table:
        for *place, load in table:
            step, dp_rank, micro_batch = map(table.whole, _LOAD_COLUMNS, place)
            now = table.number("load", load, 0, _MOST_LOAD), table.line
            first = given.setdefault((step, dp_rank, micro_batch), now)
            if first[0] != now[0]:  # equal loads may repeat: a trace has a row for each instruction
                where = f"micro-batch {micro_batch} of dp_rank {dp_rank} in step {step}"
                table.wrong("load", load, f"is another load of {where} than that in row {first[1]}")
    return {key: load for key, (load, _) in given.items()}


class Decisions:
    """What rank 0's coordinator decides in virtual time, from what real ranks would tell it.

    Attributes:
        begins_at: The first step with a lower clock; None: there was none.
    """

    def __init__(self, coordinator: LoadCoordinator, ranks: int, top_mhz: int) -> None:
        self.coordinator, self._top_mhz, self._now_s = coordinator, top_mhz, 0.0
        self.begins_at: int | None = None
        self._energies_j: Array = np.zeros(ranks)
        self._ended: list[list[EndedStep]] = [[] for _ in range(ranks)]

    def clocks(self, step: int, loads: Sequence[Sequence[float]]) -> list[int]:
        """Returns the clock of each rank, in MHz, from their loads (`load_of_step`)."""
        ranks = zip(loads, self._energies_j, self._ended, strict=True)
        rows = [make_row(step, load, Reading(step, float(now_j), self._now_s), ended) for load, now_j, ended in ranks]
        mhz = [clock or self._top_mhz for clock in self.coordinator.receive(rows)]
        self.coordinator.learn()
        if self.begins_at is None and min(mhz) < self._top_mhz:
            self.begins_at = step
        return mhz

    def add(self, step: int, time_s: float, work_s: Array, mhz: Sequence[int], energies_j: Array) -> None:
        """Ends a step: its time; and of each rank, the time until its work ended, the clock and the energy."""
        self._now_s += time_s
        self._energies_j = self._energies_j + energies_j
        self._ended = [[EndedStep(step, float(s), float(clock))] for s, clock in zip(work_s, mhz, strict=True)]


class LoadPlay:
    """Plays a trace with clocks from `loads` (of `loads_of`) on `cluster` (of `trace.job(...).cluster(seed)`)."""

    def __init__(self, trace: Trace, cluster: Cluster, loads: Array, seed: int) -> None:
        self._trace, self._cluster, self._loads, self._seed = trace, cluster, loads, seed
        pipeline = trace.pipeline
        self._shape = StepShape.of(pipeline)
        places = [(lane, rank) for rank in range(self._shape.ranks) for lane in range(len(trace.dp_ranks))]
        clocks_mhz = cluster.truth.clocks_mhz
        coordinator = LoadCoordinator(places, clocks_mhz, 0.0, LOST_TIME, self._shape)
        self.decisions = Decisions(coordinator, len(places), clocks_mhz[0])
        self._orders = [[i.name for i in order] for order in pipeline.orders]

    def run(self, iterations: int, steps: Callable[[int], Iterable[int]] = range) -> LoadSummary:
        """Plays the first `iterations` steps, and then all steps of the trace with what is known at the end.

        `steps` returns the numbers of so many steps; a caller's own may also show a progress bar.
        """
        played, count, lanes = [], self._shape.micro_batches, len(self._trace.dp_ranks)
        others: list[tuple[float, ...]] = [()] * (lanes * (self._shape.ranks - 1))
        choice = self.decisions.coordinator.choice
        for iteration in steps(iterations):
            loads = self._loads[self._trace.place(iteration, self._seed)]
            told = [load_of_step(loads[:, lane], count) for lane in range(lanes)]  # to each pipeline's first rank
            mhz = self.decisions.clocks(iteration, [*told, *others])
            step = self._cluster.run(self._clocks(mhz[:lanes]))
            played.append(Compared.of(step))
            times_s = step.ends_s - step.starts_s
            waiting_w = self._cluster.truth.blocking_power_w
            energies_j = self._shape.busy_s(times_s * (step.powers_w - waiting_w)) + waiting_w * step.time_s
            ends_s = self._shape.last_ends_s(step.ends_s)
            self.decisions.add(iteration, step.time_s, ends_s.ravel(), mhz, energies_j.ravel())
        plan = [
            Compared.of(self._cluster.steady(self._clocks(choice.choose(loads)), [factors])[0])
            for loads, factors in zip(self._loads, self._trace.table, strict=True)
        ]
        return LoadSummary.of(played, plan, plan, self.decisions)

    def _clocks(self, mhz: Sequence[int]) -> Array:
        return self._cluster.clocks_of(
            [{rank: [(name, clock) for name in names] for rank, names in enumerate(self._orders)} for clock in mhz]
        )
