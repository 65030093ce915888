"""The durations of a job's instructions as CSV, which `pfo-fs simulate --trace` replays."""

from __future__ import annotations

import csv
import gzip
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TextIO

from pfo_fs.errors import PlanError
from pfo_fs.reports.atomic_output import output_file
from pfo_fs.reports.collect import JobData, Window
from pfo_fs.reports.timeline import Laid, measured_pipeline

COLUMNS = ("step", "dp_rank", "stage", "instruction", "micro_batch", "time_s")


def write_trace(data: JobData, path: str | os.PathLike[str]) -> dict[str, int]:
    """Writes the durations of all instructions that were measured at max clocks, completely or not at all.

    Only schedules under which all ranks run at max or default clocks are written: a replay starts from
    durations at max clocks, and those at other clocks would have to be converted by a model of the GPU. With tensor
    parallelism, durations are those of the first rank of each group.

    Args:
        path: The file; compressed by gzip if its name ends in .gz.

    Returns:
        The number of `steps`, `pipelines` and `rows` in the file.

    Raises:
        PlanError: Nothing was measured at max clocks, or the order of instructions is not known.
        ConfigError: The file cannot be written.
    """
    steps: set[int] = set()
    pipelines: set[int] = set()
    rows = 0
    with _opened(path) as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
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


@contextmanager
def _opened(path: str | os.PathLike[str]) -> Iterator[TextIO]:
    with output_file(path) as file:
        if not os.fspath(path).endswith(".gz"):
            yield file
            return
        with gzip.open(file.buffer, "wt", encoding="utf-8", newline="") as compressed:
            yield compressed


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
