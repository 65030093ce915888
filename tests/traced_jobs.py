"""Small traces of jobs, for the tests that read and play them."""

import csv
import gzip
from pathlib import Path
from random import Random

HEADER = ("step", "dp_rank", "stage", "instruction", "micro_batch", "time_s")
Row = tuple[int, int, int, str, int, float]


def trace_rows(
    steps: int = 6, pipelines: int = 2, stages: int = 2, micro_batches: int = 3, slow_pipeline: int | None = None
) -> list[Row]:
    """Durations of which each micro-batch has its own length, the same on all stages; the last stage is longer."""
    rows: list[Row] = []
    for step in range(steps):
        for pipeline in range(pipelines):
            for micro_batch in range(micro_batches):
                length = Random(f"{step} {pipeline} {micro_batch}").uniform(0.7, 1.3)
                slow = 1.6 if pipeline == slow_pipeline else 1.0
                for stage in range(stages):
                    time_s = round(0.1 * length * slow * (1.5 if stage == stages - 1 else 1.0), 6)
                    rows.append((step, pipeline, stage, "forward", micro_batch, time_s))
                    rows.append((step, pipeline, stage, "backward", micro_batch, 2 * time_s))
    return rows


def write_trace(path: Path, rows: list[Row]) -> Path:
    """Writes a trace, compressed if the name ends in .gz."""
    with gzip.open(path, "wt", newline="") if path.suffix == ".gz" else path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(HEADER)
        writer.writerows(rows)
    return path
