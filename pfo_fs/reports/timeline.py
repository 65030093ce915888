"""When schedules and instructions ran. Of instructions only durations are measured; begins follow from the DAG.

The durations are also written as CSV, which `pfo-fs simulate --trace` replays.
"""

import csv
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from pfo_fs.arrays import Array, np
from pfo_fs.autotune.job_layout import numbered_iterations, pipeline_of, steps_of
from pfo_fs.errors import PlanError
from pfo_fs.models import ProfilingResult, RankInfo
from pfo_fs.planner import Pipeline
from pfo_fs.planner.longest_paths import LongestPaths
from pfo_fs.reports.atomic_output import output_file
from pfo_fs.reports.collect import JobData, Window, results_of
from pfo_fs.store import bodies
from pfo_fs.turns import share_of
from pfo_fs.user_files import TRACE_COLUMNS

Span = tuple[Window | None, int, int, float]
"""(schedule, first step, end of the steps, share of the ranks that follow it then); the others run default clocks."""


def spans_of(data: JobData, end: int) -> list[Span]:
    """Returns what ranks follow in all steps before `end`; None: no schedule."""
    by_number = {window.number: window for window in data.windows}
    spans: list[Span] = [(None, 0, data.windows[0].index.start_step if data.windows else end, 1.0)]
    for window in data.windows:
        index, over = window.index, end if window.end_step is None else window.end_step
        until, after = min(over, index.until or over), by_number.get(index.after)
        turns = after.index.turns if after is not None and not after.index.until else ()
        spans += [(window, index.start_step, until, share_of(index.turns))]
        spans += [(after, max(until, index.start_step), over, share_of(turns))]
    cut = [(window, first, min(last, end), share) for window, first, last, share in spans]
    return [span for span in cut if span[1] < span[2]]


@dataclass(frozen=True)
class Laid:
    """One iteration of one pipeline, node by node of its DAG.

    Attributes:
        starts_s: When each instruction begins, in s from the begin of the iteration.
        clocks_mhz: The clock that was set for each; 0: it was left alone.
        powers_w: Power of the rank's GPUs during each; 0 if it is not known.
    """

    pipeline: Pipeline
    starts_s: Sequence[float]
    times_s: Sequence[float]
    clocks_mhz: Sequence[int]
    powers_w: Sequence[float]

    @property
    def length_s(self) -> float:
        """Time from the begin of the iteration to the last end, in s."""
        return max(start + time for start, time in zip(self.starts_s, self.times_s, strict=True))

    def rows(self) -> list[range]:
        """The nodes of each rank."""
        return [range(first, end) for first, end in pairwise(self.pipeline.first_nodes)]


def dag_of(data: JobData, pipeline: int = 0) -> Pipeline | None:
    """The DAG that a pipeline's ranks run, with the model's communication delay; None while it is not known.

    Raises:
        PlanError: The recorded orders cannot run.
    """
    orders = data.pipeline_orders(pipeline)
    if not orders:
        return None
    return pipeline_of(orders).with_delay(data.model.delay_s if data.model is not None else 0.0)


def starts_of(dag: Pipeline, times_s: Sequence[float]) -> list[float]:
    """When each node begins, in s, as early as the DAG allows."""
    times: Array = np.array(times_s)[:, None]
    starts: list[float] = (LongestPaths(dag.topological, dag.edges).ends(times).ends_s - times)[:, 0].tolist()
    return starts


class MeasuredPipeline(NamedTuple):
    """What a pipeline's ranks measured under a schedule, by stage, and the iterations by their number in the window."""

    ranks: list[RankInfo]
    results: list[bodies.ResultBody]
    iterations: dict[int, Laid]


def measured_pipeline(data: JobData, window: Window, pipeline: int) -> MeasuredPipeline | None:
    """Returns measured iterations, with begins from the DAG; those in which a rank ran something else are left out.

    None while ranks, their instructions or their results are missing.

    Raises:
        PlanError: The recorded orders cannot run.
    """
    ranks, dag = data.pipeline_ranks(pipeline), dag_of(data, pipeline)
    found = results_of(data, window.number, ranks)
    if dag is None or not ranks or len(found) < len(ranks):
        return None
    results = [found[info.rank] for info in ranks]
    steps = steps_of(results[0].result)
    entries = [data.entries(info, window, steps[0]) for info in ranks]
    powers = [_powers(body.result) for body in results]
    ran = [dict(numbered_iterations(body.result, entry)) for body, entry in zip(results, entries, strict=True)]
    laid = {}
    for number in sorted(set.intersection(*map(set, ran))):
        rows = [of_rank[number] for of_rank in ran]
        entries = [data.entries(info, window, steps[number]) for info in ranks]
        times = [run.time_s for row in rows for run in row]
        if not all(0 < time_s < math.inf for time_s in times):
            continue
        watts = [
            power_w if 0 < (power_w := fitted.get((name, mhz), energy_j / time_s)) < math.inf else 0.0
            for row, entry, fitted in zip(rows, entries, powers, strict=True)
            for (name, _, mhz), (time_s, energy_j, _) in zip(entry, row, strict=True)
        ]
        laid[number] = Laid(dag, starts_of(dag, times), times, [mhz for row in entries for _, _, mhz in row], watts)
    return MeasuredPipeline(ranks, results, laid)


def _powers(result: ProfilingResult) -> dict[tuple[str, int], float]:
    """Powers that were fitted over the whole window, more precise than the energy of one run of an instruction."""
    return {(p.instruction, p.frequency): p.power for p in result.powers if p.instruction and p.power > 0}


# ---- as a trace


def write_trace(data: JobData, path: str | os.PathLike[str]) -> dict[str, int]:
    """Writes the durations of all instructions that were measured at max clocks, completely or not at all.

    Only schedules under which all ranks run at max or default clocks are written: a replay starts from durations at max
    clocks; durations at other clocks would have to be converted by a model of the GPU. With tensor parallelism,
    durations are those of the first rank of each group.

    Returns:
        The number of `steps`, `pipelines` and `rows` in the file.

    Raises:
        PlanError: Nothing was measured at max or default clocks, or orders of instructions are unknown or wrong.
        ConfigError: The file cannot be written, or would replace a file that is no trace.
    """
    steps: set[int] = set()
    pipelines: set[int] = set()
    rows = 0
    with output_file(path, ",".join(TRACE_COLUMNS)) as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(TRACE_COLUMNS)
        for step, pipeline, laid in at_max_clocks(data):
            steps.add(step)
            pipelines.add(pipeline)
            rows += len(laid.times_s)
            for node, time_s in zip(laid.pipeline.instructions, laid.times_s, strict=True):
                writer.writerow((step, pipeline, node.stage, node.name, node.microbatch, f"{time_s:.6g}"))
        if not rows:
            raise PlanError(
                f"job {data.folder.job_id}: no iteration was measured at max or default clocks of all "
                "ranks, or the order of instructions is not known, so there is no trace to write"
            )
    return {"steps": len(steps), "pipelines": len(pipelines), "rows": rows}


def at_max_clocks(data: JobData) -> Iterator[tuple[int, int, Laid]]:
    """Yields (step, pipeline, iteration) of the steps that all pipelines with results have measured at max clocks."""
    for window in data.windows:
        if window.measured is None or not data.at_max_clocks(window, or_default=True):
            continue
        by_pipeline = {
            pipeline: iterations
            for pipeline in range(data.job.job_info.dp_degree)
            if (iterations := _iterations(data, window, pipeline))
        }
        for step in sorted(set.intersection(*map(set, by_pipeline.values())) if by_pipeline else ()):
            for pipeline, iterations in by_pipeline.items():
                yield step, pipeline, iterations[step]


def _iterations(data: JobData, window: Window, pipeline: int) -> Mapping[int, Laid]:
    """The measured iterations of one pipeline, by step; empty if results of a rank are missing."""
    group = measured_pipeline(data, window, pipeline)
    if group is None:
        return {}
    first = group.results[0]
    steps = first.result.iter_step or range(first.first_step, first.first_step + len(first.result.iter_time))
    return {steps[number]: iteration for number, iteration in group.iterations.items()}
