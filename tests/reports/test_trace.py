"""Traces, held against the trace event format."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from traced_jobs import trace_rows
from traced_jobs import write_trace as write_durations

from pfo_fs.errors import ConfigError, PlanError
from pfo_fs.reports.collect import JobData, collect_job, results_of
from pfo_fs.reports.trace import window_to_trace, write_trace, write_trace_csv
from pfo_fs.settings import PFOSettings
from pfo_fs.simulator import Play, read_trace

Events = list[dict[str, Any]]


@pytest.fixture(scope="module")
def document(data: JobData, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    path = tmp_path_factory.mktemp("trace") / "trace.json"
    write_trace(data, window_to_trace(data, None), path)
    loaded: dict[str, Any] = json.loads(path.read_text(), parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    return loaded


@pytest.fixture(scope="module")
def events(document: dict[str, Any]) -> Events:
    found: Events = document["traceEvents"]
    return found


def slices(events: Events) -> dict[int, Events]:
    """The instructions of each process."""
    found: dict[int, Events] = defaultdict(list)
    for event in events:
        if event["ph"] == "X" and event["cat"] == "instruction":
            found[event["pid"]].append(event)
    return found


def test_every_event_has_what_the_format_asks_for(events: Events) -> None:
    for event in events:
        assert event["ph"] in {"X", "C", "M", "s", "f"}
        assert isinstance(event["pid"], int)
        assert event["ph"] == "C" or isinstance(event["tid"], int)
        assert isinstance(event["name"], str)
        assert event["ts"] >= 0
        if event["ph"] == "X":
            assert event["dur"] > 0
        if event["ph"] == "C":
            assert all(isinstance(value, (int, float)) for value in event["args"].values())
        if event["ph"] == "M":
            known = {"process_name": "name", "thread_name": "name", "process_sort_index": "sort_index"}
            assert set(event["args"]) == {known[event["name"]]}


def measured_steps(data: JobData) -> int:
    """The number of steps of the newest result."""
    newest = max(window.number for window in data.windows if window.measured is not None)
    return len(results_of(data, newest, data.infos)[0].result.iter_step)


def test_there_is_a_named_process_for_each_rank_with_all_its_instructions(events: Events, data: JobData) -> None:
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert names[5].startswith("rank 5: stage 1, pipeline 1")
    of_rank = slices(events)
    assert sorted(of_rank) == list(range(8))
    assert all(len(found) == measured_steps(data) * 8 for found in of_rank.values())
    assert {"micro-batch", "MHz", "W"} <= {name for event in of_rank[0] for name in event["args"]}


@pytest.mark.parametrize("rank", [0, 1])
def test_a_step_in_which_a_rank_had_no_turn_is_at_default_clocks(data: JobData, tmp_path: Path, rank: int) -> None:
    window, path = data.windows[1], tmp_path / "trace.json"
    write_trace(data, window, path, pipeline=0)
    document = json.loads(path.read_text())
    steps = {event["ts"]: event["name"] for event in document["traceEvents"] if event.get("cat") == "iteration"}
    clocks = [event for event in document["traceEvents"] if event["name"] == "clock (MHz)" and event["pid"] == rank]
    at_default = [steps[event["ts"]] for event in clocks if event["args"]["MHz"] == 0]
    turns, (result, *_) = window.index.turns, results_of(data, window.number, data.infos[rank : rank + 1]).values()
    assert at_default == [f"step {s}" for s in result.result.iter_step if not turns[s % len(turns)] >> rank & 1]
    assert 0 < len(at_default) < len(steps)
    until = window.index.until
    assert document["otherData"]["followed"] == f"in turns (1 2 3 0) until step {until}, then default clocks"


def test_a_rank_runs_one_instruction_at_a_time(events: Events) -> None:
    for found in slices(events).values():
        for before, after in pairwise(found):
            assert after["ts"] >= before["ts"] + before["dur"] - 0.01


def test_a_forward_begins_after_that_of_the_stage_before_has_ended(events: Events) -> None:
    of_rank = slices(events)

    def forward(rank: int, microbatch: int) -> dict[str, Any]:
        return next(e for e in of_rank[rank] if e["name"] == "forward" and e["args"]["micro-batch"] == microbatch)

    for microbatch in range(4):
        before, after = forward(0, microbatch), forward(1, microbatch)
        assert after["ts"] >= before["ts"] + before["dur"]


def test_clock_and_power_are_counters_in_the_order_of_time(events: Events) -> None:
    tracks: dict[tuple[int, str], list[float]] = defaultdict(list)
    for event in events:
        if event["ph"] == "C":
            tracks[event["pid"], event["name"]].append(event["ts"])
    assert {name for _, name in tracks} == {"clock (MHz)", "power (W)"}
    assert all(times == sorted(times) for times in tracks.values())


def test_the_reconstructed_iteration_is_as_long_as_the_measured_one_within_a_percent(
    events: Events, data: JobData
) -> None:
    iterations = [event for event in events if event.get("cat") == "iteration"]
    assert len(iterations) == measured_steps(data)
    for event in iterations:
        args = event["args"]
        assert args["reconstructed_span_s"] == pytest.approx(args["measured_span_s"], rel=0.01)


def test_the_trace_is_of_the_newest_results_and_says_that_begins_are_reconstructed(
    document: dict[str, Any], data: JobData
) -> None:
    assert "reconstructed" in document["otherData"]["begins"]
    newest = max(window.number for window in data.windows if window.measured is not None)
    assert document["otherData"]["schedule"] == newest > 1


def test_a_job_without_known_orders_has_no_trace_and_leaves_no_file(data: JobData, tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="order of instructions is not known"):
        write_trace(replace(data, orders={}), data.windows[1], tmp_path / "trace.json")
    assert list(tmp_path.iterdir()) == []


def test_a_single_pipeline_can_be_asked_for(data: JobData, tmp_path: Path) -> None:
    assert write_trace(data, data.windows[1], tmp_path / "trace.json", pipeline=1)["ranks"] == 4
    with pytest.raises(ConfigError, match=r"there is no pipeline 2; job .* has 0 to 1"):
        write_trace(data, data.windows[1], tmp_path / "trace.json", pipeline=2)


def test_an_arrow_leads_from_each_instruction_to_the_one_on_another_stage_that_needs_it(
    events: Events, data: JobData
) -> None:
    ends: dict[str, dict[int, dict[str, Any]]] = {"s": {}, "f": {}}
    for event in events:
        if event["ph"] in ends:
            assert event["id"] not in ends[event["ph"]], "each arrow has a number of its own"
            ends[event["ph"]][event["id"]] = event
    assert set(ends["s"]) == set(ends["f"])
    assert len(ends["s"]) == measured_steps(data) * 2 * 2 * 3 * 4, (
        "iterations, pipelines, directions, neighbours, micro-batches"
    )
    of_rank = slices(events)
    for number, start in ends["s"].items():
        end = ends["f"][number]
        assert start["ts"] < end["ts"]
        assert start["pid"] != end["pid"]
        for point in (start, end):
            assert any(e["ts"] - 1 <= point["ts"] <= e["ts"] + e["dur"] + 1 for e in of_rank[point["pid"]])


# ---- durations as CSV


def test_a_simulated_job_writes_the_durations_of_the_trace_that_it_has_replayed(tmp_path: Path) -> None:
    replayed = read_trace(write_durations(tmp_path / "in.csv", trace_rows(steps=20)))
    play = Play(replayed.job().cluster(), tmp_path / "pfo", PFOSettings(scheduler="ParetoScheduler", profile_steps=5))
    for _ in play.run(20):
        pass
    counts = write_trace_csv(collect_job(play.folder), tmp_path / "out.csv.gz")
    written = read_trace(tmp_path / "out.csv.gz")
    assert written.dp_ranks == [0, 1]
    assert len(written.steps) == counts["steps"] >= 5
    for kind, length_s in written.lengths_s.items():
        for number, step in enumerate(written.steps):
            nodes = [n for n, one in enumerate(written.pipeline.instructions) if (one.stage, one.name) == kind]
            times_s = replayed.lengths_s[kind] * replayed.table[step, nodes]
            assert length_s * written.table[number, nodes] == pytest.approx(times_s, rel=1e-4)


def test_only_iterations_at_full_clocks_are_written(data: JobData, tmp_path: Path) -> None:
    write_trace_csv(data, tmp_path / "job.csv")
    steps = set(read_trace(tmp_path / "job.csv").steps)
    lowered = [
        window for window in data.windows if window.measured and any(mhz not in (0, 1410) for mhz in window.clocks_mhz)
    ]
    assert lowered
    assert not steps & {window.measured.first_step for window in lowered if window.measured}


def test_a_job_without_results_has_no_trace_and_leaves_no_file(tmp_path: Path) -> None:
    trace = read_trace(write_durations(tmp_path / "in.csv", trace_rows()))
    play = Play(trace.job().cluster(), tmp_path / "pfo", PFOSettings(scheduler="ParetoScheduler"))
    play.step()
    with pytest.raises(PlanError, match="no iteration was measured"):
        write_trace_csv(collect_job(play.folder), tmp_path / "out.csv")
    assert not (tmp_path / "out.csv").exists()
