"""How often the monitor takes ordinary iterations for a change: iterations of production traces, drawn again and again.

    python benchmarks/false_alarms.py                   # 10 x 100,000 iterations of each job; about 20 minutes
    python benchmarks/false_alarms.py --runs 2 --json

An alarm makes the plan in force be measured again, or plans for a straggler, so a false one costs trials. Each run
begins as in a job: the monitor expects mean and scatter of 24 iterations, and after an alarm those of 24 others.
Iterations run at max clocks, with a jitter of 0.2 % beside what the trace holds; all pipelines of an iteration
are drawn together. Columns: the trace and its number of pipelines, iterations, alarms about one pipeline and about all
of them, and alarms per 100,000 iterations. Without the traces (`--data`), normal noise of 1 % takes their place.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from _known_plans import slow_workers
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from pfo_fs.autotune.judgements import highest_scatter
from pfo_fs.autotune.monitor import Monitor
from pfo_fs.scheduler.base import IterationTime
from pfo_fs.simulator import read_trace
from pfo_fs.turns import ALL

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"
PIPELINES = (1, 2, 4, 8, 16)
_PLAYED = 1_000
"""Iterations that are simulated; those of a run are drawn from them."""
_EXPECTED_FROM = 24
_EVERY = 2_000
"""The monitor expects other iterations after so many at most, as a plan is measured again."""


class Found(NamedTuple):
    """Alarms of one run."""

    about_pipelines: int
    about_all: int


def jobs(data: Path) -> Iterator[tuple[str, Any]]:
    """The name of each job, and the times of its iterations in s: (iterations, pipelines)."""
    paths = sorted(data.glob("traces/*.csv.gz"))
    if not paths:
        print(f"{data / 'traces'} is absent or empty: normal noise takes the place of traces", file=sys.stderr)
        for pipelines in PIPELINES:
            yield f"normal x{pipelines}", np.random.default_rng(0).normal(1.0, 0.01, (_PLAYED, pipelines))
    for path in paths:
        for pipelines in PIPELINES:
            slow = slow_workers(path)
            if pipelines <= len(read_trace(path, without=slow).dp_ranks):
                job = read_trace(path, pipelines=pipelines, without=slow).job(nodes=None)
                cluster = job.cluster(1)
                clocks = cluster.clocks_of([{}] * cluster.pipelines)
                spans_s = np.array([cluster.run(clocks).spans_s for _ in range(_PLAYED)])
                yield f"{path.name.split('.')[0]} x{pipelines}", spans_s


def run(spans_s: Any, iterations: int, seed: int) -> Found:
    """Feeds a monitor with so many iterations, drawn from those that were played."""
    drawn = np.random.default_rng(seed)
    pipelines = spans_s.shape[1]
    monitor = Monitor(pipelines)
    left, about_pipelines, about_all = 0, 0, 0
    for step, row in enumerate(drawn.integers(0, len(spans_s), iterations).tolist()):
        if not left:
            some = spans_s[drawn.integers(0, len(spans_s), _EXPECTED_FROM)]
            means = some.mean(axis=0)
            scatter = highest_scatter(float((some.std(axis=0) / means).max()), _EXPECTED_FROM)
            monitor.expect({(ALL, pipeline): mean_s for pipeline, mean_s in enumerate(means.tolist())}, scatter)
            left = _EVERY
        left -= 1
        times = [IterationTime(pipeline, step, 1, span_s) for pipeline, span_s in enumerate(spans_s[row].tolist())]
        stragglers = monitor.add(times, {})
        if stragglers is not None:
            about_pipelines += bool(stragglers)
            about_all += not stragglers
            left = 0
    return Found(about_pipelines, about_all)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--iterations", type=int, default=100_000)
    parser.add_argument("--data", type=Path, default=SHARED)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    table = Table(box=SIMPLE_HEAD, title="false alarms")
    for name in ("job", "iterations", "about pipelines", "about all", "per 100,000"):
        table.add_column(name, justify="left" if name == "job" else "right")
    for name, spans_s in jobs(args.data):
        found = [run(spans_s, args.iterations, seed) for seed in range(args.runs)]
        pipelines, everything = (sum(column) for column in zip(*found, strict=True))
        total = args.runs * args.iterations
        if args.json:
            print(json.dumps({"job": name, "iterations": total, "pipelines": pipelines, "all": everything}), flush=True)
        rate = 100_000 * (pipelines + everything) / total
        table.add_row(name, f"{total:,}", str(pipelines), str(everything), f"{rate:.2f}")
    if not args.json:
        Console().print(table)


if __name__ == "__main__":
    main()
