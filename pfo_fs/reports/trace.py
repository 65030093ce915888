"""Traces of measured iterations: events for Perfetto (ui.perfetto.dev) and chrome://tracing, or durations as CSV.

The format of events is https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU:
times in microseconds.
"""

from __future__ import annotations

import csv
import gzip
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TextIO

from pfo_fs.errors import ConfigError, PlanError
from pfo_fs.reports.atomic_output import output_file
from pfo_fs.reports.collect import JobData, Window
from pfo_fs.reports.timeline import Laid, MeasuredPipeline, measured_pipeline
from pfo_fs.reports.wording import term_text

COLUMNS = ("step", "dp_rank", "stage", "instruction", "micro_batch", "time_s")
"""Those of a CSV file."""
NOTE = (
    "Only durations of instructions are recorded. Start times are reconstructed from the dependencies of the pipeline, "
    "with everything as early as possible and the communication delay delay_s between ranks. Each iteration has its "
    "reconstructed and its measured length (reconstructed_span_s, measured_span_s)."
)


def window_to_trace(data: JobData, number: int | None) -> Window:
    """The schedule to trace: `number`, or the newest with results.

    Raises:
        ConfigError: There is no such schedule, or it has no results.
    """
    measured = [window for window in data.windows if window.measured is not None]
    if not measured:
        raise ConfigError(
            f"job {data.folder.job_id} has no results yet, so there is nothing to trace; results come some iterations "
            "after a schedule"
        )
    if number is None:
        return measured[-1]
    for window in measured:
        if window.number == number:
            return window
    there = ", ".join(str(window.number) for window in measured)
    raise ConfigError(f"job {data.folder.job_id} has no results of schedule {number}; it has results of {there}")


def write_trace(
    data: JobData, window: Window, path: str | os.PathLike[str], pipeline: int | None = None, most: int | None = None
) -> dict[str, int]:
    """Writes the measured iterations of one schedule, completely or not at all.

    Args:
        pipeline: Data-parallel rank of the only pipeline to write; None: all of them.
        most: Write at most this many iterations, the first ones; None: all.

    Returns:
        The number of `iterations`, `ranks` and `slices` in the file.

    Raises:
        PlanError: The order of instructions or their durations are not known.
        ConfigError: The file cannot be written, or there is no such pipeline.
    """
    degree = data.job.job_info.dp_degree
    if pipeline is not None and not 0 <= pipeline < degree:
        raise ConfigError(f"there is no pipeline {pipeline}; job {data.folder.job_id} has 0 to {degree - 1}")
    pipelines = range(degree) if pipeline is None else [pipeline]
    places = [(number, tp) for number in pipelines for tp in range(data.job.job_info.tp_degree)]
    measured = [group for place in places if (group := measured_pipeline(data, window, *place)) is not None]
    numbers = sorted({number for group in measured for number in group.iterations})[:most]
    measured = [
        group._replace(
            iterations={number: group.iterations[number] for number in numbers if number in group.iterations}
        )
        for group in measured
    ]
    slices = sum(len(laid.times_s) for group in measured for laid in group.iterations.values())
    if not slices:
        raise PlanError(
            f"job {data.folder.job_id}, schedule {window.number}: the order of instructions is not known, or "
            "no iteration ran in it, so there is nothing to trace"
        )
    with output_file(path) as file:
        head = {"displayTimeUnit": "ms", "otherData": _about(data, window)}
        file.write(json.dumps(head)[:-1] + ', "traceEvents": [')
        for number, event in enumerate(_events(data, window, measured, numbers)):
            file.write((",\n" if number else "\n") + json.dumps(event, separators=(",", ":"), allow_nan=False))
        file.write("\n]}\n")
    return {"iterations": len(numbers), "ranks": sum(len(group.ranks) for group in measured), "slices": slices}


def _about(data: JobData, window: Window) -> dict[str, object]:
    assert window.measured is not None
    model = data.model
    return {
        "job": data.folder.job_id,
        "schedule": window.number,
        "from_step": window.index.start_step,
        "first_measured_step": window.measured.first_step,
        "begins": NOTE,
        "delay_s": model.delay_s if model is not None else 0.0,
        "delay_known": model is not None,
        "power": "of an instruction at its clock over the whole window if it could be fitted, else its own energy "
        "over its time; between instructions the blocking power"
        + ("" if model is not None else ", which is not known here"),
        "clock": "the clock that was set (MHz); 0 or absent where clocks were left alone",
        "followed": term_text(window.index) or "by all ranks in all steps",
    }


def _events(
    data: JobData, window: Window, measured: Sequence[MeasuredPipeline], numbers: Sequence[int]
) -> Iterator[dict[str, object]]:
    gpu = {rank.rank_info.rank: rank.gpu_name for rank in data.ranks}
    begins, at_s = {}, 0.0
    for number in numbers:  # iterations begin together: gradients are reduced at the end of each
        begins[number] = at_s
        ran = [group for group in measured if number in group.iterations]
        lasted = [body.result.iter_time[number] for group in ran for body in group.results]
        at_s += max([*lasted, *(group.iterations[number].length_s for group in ran)])
    yield from _job_events(data, window, measured, begins, at_s)
    waiting_w = data.model.blocking_power_w if data.model is not None else None
    arrow = 0
    for group in measured:
        for place, rank in enumerate(group.ranks):
            name = f"rank {rank.rank}: {data.place} {rank.pp_rank}, pipeline {rank.dp_rank}"
            name += f", tensor rank {rank.tp_rank}" if data.job.job_info.tp_degree > 1 else ""
            name += f" ({gpu[rank.rank]})" if gpu.get(rank.rank) else ""
            yield from _process(rank.rank, name, rank.rank, "instructions")
            for number, laid in group.iterations.items():
                yield from _rank_events(laid, place, rank.rank, begins[number], waiting_w)
        for number, laid in group.iterations.items():
            arrows = _arrows(laid, [rank.rank for rank in group.ranks], begins[number], arrow)
            yield from arrows
            arrow += len(arrows) // 2


def _arrows(laid: Laid, ranks: Sequence[int], begin_s: float, first: int) -> list[dict[str, object]]:
    """Returns the messages from rank to rank: an arrow from the middle of an instruction to the one that needs it."""
    rank_of = {node: rank for rank, nodes in zip(ranks, laid.rows(), strict=True) for node in nodes}
    events: list[dict[str, object]] = []
    for before, after, _ in laid.pipeline.edges:
        if rank_of[before] != rank_of[after]:
            for phase, node, place in (("s", before, {}), ("f", after, {"bp": "e"})):
                middle_s = begin_s + laid.starts_s[node] + laid.times_s[node] / 2
                at = {"ph": phase, "pid": rank_of[node], "tid": 1, "ts": round(middle_s * 1e6)}
                events.append({**at, "id": first + len(events) // 2, "name": "to", "cat": "to", **place})
    return events


def _job_events(
    data: JobData, window: Window, measured: Sequence[MeasuredPipeline], begins: Mapping[int, float], end_s: float
) -> Iterator[dict[str, object]]:
    """Returns the iterations as a process of their own."""
    assert window.measured is not None
    pid = 1 + max((info.rank for info in data.infos), default=0)
    yield from _process(pid, f"iterations of {data.folder.job_id}, schedule {window.number}", -1, "iterations")
    ends = [*begins.values(), end_s][1:]
    for (number, begin_s), until_s in zip(begins.items(), ends, strict=True):
        ran = [group for group in measured if number in group.iterations]
        firsts = [group.results[0].result for group in ran]
        args = {
            "measured_span_s": max((first.iter_span or first.iter_time)[number] for first in firsts),
            "reconstructed_span_s": max(group.iterations[number].length_s for group in ran),
        }
        yield _slice(pid, begin_s, until_s - begin_s, f"step {window.measured.first_step + number}", "iteration", args)


def _rank_events(
    laid: Laid, place: int, rank: int, begin_s: float, waiting_w: float | None
) -> Iterator[dict[str, object]]:
    nodes = laid.rows()[place]
    several = len({laid.pipeline.instructions[node].stage for node in nodes}) > 1
    clock, power, now_s = None, -1.0, 0.0
    if not any(laid.clocks_mhz[node] for node in nodes):
        yield _counter(rank, begin_s, "clock (MHz)", "MHz", 0)
    for node in nodes:
        instruction, start_s, time_s = laid.pipeline.instructions[node], laid.starts_s[node], laid.times_s[node]
        mhz, power_w = laid.clocks_mhz[node], laid.powers_w[node]
        if waiting_w is not None and start_s > now_s + 1e-9:
            yield _counter(rank, begin_s + now_s, "power (W)", "W", waiting_w)
            power = waiting_w
        if mhz and mhz != clock:
            yield _counter(rank, begin_s + start_s, "clock (MHz)", "MHz", mhz)
            clock = mhz
        if power_w and abs(power_w - power) >= 0.5:
            power = power_w
            yield _counter(rank, begin_s + start_s, "power (W)", "W", power_w)
        args = {"stage": instruction.stage if several else None, "micro-batch": instruction.microbatch}
        args |= {"MHz": mhz or None, "W": round(power_w) or None}
        known = {what: value for what, value in args.items() if value is not None}
        yield _slice(rank, begin_s + start_s, time_s, instruction.name, "instruction", known)
        now_s = start_s + time_s
    if waiting_w is not None:
        yield _counter(rank, begin_s + now_s, "power (W)", "W", waiting_w)


def _us(seconds: float) -> float:
    """Microseconds with one decimal, more than the marks resolve."""
    return round(seconds * 1e6, 1)


def _counter(pid: int, at_s: float, name: str, unit: str, value: float) -> dict[str, object]:
    return {"ph": "C", "pid": pid, "ts": _us(at_s), "name": name, "args": {unit: round(value)}}


def _slice(
    pid: int, begin_s: float, time_s: float, name: str, category: str, args: Mapping[str, float]
) -> dict[str, object]:
    at = {"ph": "X", "pid": pid, "tid": 1, "ts": _us(begin_s), "dur": _us(time_s)}
    return {**at, "name": name, "cat": category, "args": args}


def _process(pid: int, name: str, order: int, thread: str) -> list[dict[str, object]]:
    """The name and place of a process in the picture, and the name of its only thread."""
    return [
        _meta(pid, "process_name", name=name),
        _meta(pid, "process_sort_index", sort_index=order),
        _meta(pid, "thread_name", tid=1, name=thread),
    ]


def _meta(pid: int, what: str, tid: int = 0, **args: Any) -> dict[str, object]:
    return {"ph": "M", "pid": pid, "tid": tid, "ts": 0, "name": what, "args": args}


# ---- durations as CSV, which `pfo-fs simulate --trace` replays


def write_trace_csv(data: JobData, path: str | os.PathLike[str]) -> dict[str, int]:
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
