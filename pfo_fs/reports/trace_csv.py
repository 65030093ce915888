"""Measured durations of a job as a CSV file, which `pfo-fs simulate --trace` replays."""

from __future__ import annotations

import csv
import gzip
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TextIO

from pfo_fs.errors import ConfigError, PlanError
from pfo_fs.reports.atomic_output import output_file
from pfo_fs.reports.collect import JobData, Window
from pfo_fs.reports.timeline import Laid, measured_pipeline

COLUMNS = ("step", "dp_rank", "stage", "instruction", "micro_batch", "time_s")


def write_trace_csv(data: JobData, path: str | os.PathLike[str]) -> dict[str, int]:
    """Writes the durations of all instructions that were measured at max clocks, completely or not at all.

    Only schedules under which all ranks run at max or default clocks are written: a replay starts from
    durations at max clocks, and those at other clocks would have to be converted by a model of the GPU. With tensor
    parallelism, durations are those of the first rank of each group.

    Args:
        data: The job.
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
    try:
        with _opened(path) as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(COLUMNS)
            for step, pipeline, laid in _at_max_clocks(data):
                steps.add(step)
                pipelines.add(pipeline)
                rows += len(laid.times_s)
                for one, time_s in zip(laid.pipeline.instructions, laid.times_s, strict=True):
                    writer.writerow((step, pipeline, one.stage, one.name, one.microbatch, f"{time_s:.6g}"))
            if not rows:
                raise PlanError(
                    f"job {data.folder.job_id}: no iteration was measured at max or default clocks of all "
                    "ranks, or the order of instructions is not known, so there is no trace to write"
                )
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror}") from error
    return {"steps": len(steps), "pipelines": len(pipelines), "rows": rows}


@contextmanager
def _opened(path: str | os.PathLike[str]) -> Iterator[TextIO]:
    with output_file(path) as file:
        if not os.fspath(path).endswith(".gz"):
            yield file
            return
        with gzip.open(file.buffer, "wt", encoding="utf-8", newline="") as compressed:
            yield compressed


def _at_max_clocks(data: JobData) -> Iterator[tuple[int, int, Laid]]:
    """(step, pipeline, iteration) of the steps that were measured at max clocks by all pipelines with results."""
    for window in data.windows:
        if window.measured is None or not data.at_max_clocks(window, or_default=True):
            continue
        found = {pipeline: _iterations(data, window, pipeline) for pipeline in range(data.job.job_info.dp_degree)}
        found = {pipeline: iterations for pipeline, iterations in found.items() if iterations}
        if found:
            for step in sorted(set.intersection(*(set(iterations) for iterations in found.values()))):
                for pipeline, iterations in found.items():
                    yield step, pipeline, iterations[step]


def _iterations(data: JobData, window: Window, pipeline: int) -> Mapping[int, Laid]:
    """The measured iterations of one pipeline, by step; empty if results of a rank are missing."""
    found = measured_pipeline(data, window, pipeline)
    if found is None:
        return {}
    first = found.results[0]
    steps = first.result.iter_step or range(first.first_step, first.first_step + len(first.result.iter_time))
    return {steps[number]: iteration for number, iteration in found.iterations.items()}
