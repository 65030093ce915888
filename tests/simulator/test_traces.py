"""Traces of jobs: what is read of them, and how the simulator plays them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from simulated_jobs import KIND
from traced_jobs import trace_rows, write_trace

from pfo_fs.errors import PlanError
from pfo_fs.settings import PFOSettings
from pfo_fs.simulator import QUIET, Nuisances, Play, read_trace, summarize
from pfo_fs.simulator.nodes import NodeSettings


def test_an_instruction_takes_as_long_in_a_simulated_iteration_as_in_the_step_of_the_trace(tmp_path: Path) -> None:
    rows = trace_rows()
    job = read_trace(write_trace(tmp_path / "job.csv.gz", rows)).job(nuisances=QUIET)
    cluster = job.cluster()
    clocks = cluster.clocks_of([{}, {}])
    for step in range(6):
        played = cluster.run(clocks)
        times = {row[1:5]: row[5] for row in rows if row[0] == step}
        for node, one in enumerate(job.pipeline.instructions):
            for pipeline in range(2):
                took_s = played.ends_s[node, pipeline] - played.starts_s[node, pipeline]
                assert took_s == pytest.approx(times[pipeline, one.stage, one.name, one.microbatch])


def test_after_the_last_step_of_a_trace_steps_are_drawn_by_the_seed(tmp_path: Path) -> None:
    trace = read_trace(write_trace(tmp_path / "job.csv", trace_rows()))

    def drawn(seed: int) -> list[float]:
        return [float(trace.factors(iteration, seed)[0, 0]) for iteration in range(6, 40)]

    assert drawn(1) == drawn(1) != drawn(2)
    assert set(drawn(1)) == {float(table[0, 0]) for table in trace.table}


def test_only_the_first_pipelines_of_a_trace_are_taken_if_fewer_are_asked_for(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "job.csv", trace_rows(pipelines=3))
    assert read_trace(path, pipelines=2, without=[0]).dp_ranks == [1, 2]
    with pytest.raises(PlanError, match="has 3 pipelines, fewer than 4"):
        read_trace(path, pipelines=4)


def test_a_step_that_lacks_an_instruction_is_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert read_trace(write_trace(tmp_path / "job.csv", trace_rows()[1:])).steps == [1, 2, 3, 4, 5]
    assert "1 of 6 steps are left out, step 0 first" in caplog.text


@pytest.mark.parametrize(
    ("place", "text", "words"),
    [
        (0, "0.5", "row 3, column step: '0.5' is not a whole number"),
        (1, "-1", "row 3, column dp_rank: '-1' is not a whole number"),
        (2, "9", "10 stages x 3 micro-batches"),
        (3, "F", "row 3: instruction 'F' is unknown: use forward, backward .zero bubble"),
        (3, "backward_input", "schedule 1f1b has no 'backward_input' of micro-batch 0 on stage 0; give another"),
        (3, "forward", "row 3: step 0 of dp_rank 0 has 'forward' of micro-batch 0 on stage 0 twice, first in row 2"),
        (5, "0", r"row 3, column time_s: '0' is not a number of seconds from 1e-09 to 1e\+06"),
        (5, "nan", r"row 3, column time_s: 'nan' is not a number of seconds from 1e-09 to 1e\+06"),
        (5, "1 s", r"row 3, column time_s: '1 s' is not a number of seconds from 1e-09 to 1e\+06"),
    ],
)
def test_a_row_that_cannot_be_meant_is_named(tmp_path: Path, place: int, text: str, words: str) -> None:
    rows: list[Any] = [list(row) for row in trace_rows(steps=1)[:12]]
    rows[1][place] = text
    with pytest.raises(PlanError, match=words):
        read_trace(write_trace(tmp_path / "job.csv", rows))


def test_a_trace_without_rows_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="has no rows"):
        read_trace(write_trace(tmp_path / "job.csv", []))


@pytest.mark.parametrize("nodes", [None, KIND])
def test_a_run_at_the_highest_clocks_is_neither_late_nor_saves_energy_whatever_the_noise(
    tmp_path: Path, nodes: NodeSettings | None
) -> None:
    trace = read_trace(write_trace(tmp_path / "job.csv", trace_rows()))
    cluster = trace.job(nodes=nodes, nuisances=Nuisances(time_jitter=0.01)).cluster(seed=3)
    clocks = cluster.clocks_of([{}, {}])
    for _ in range(5):
        played = cluster.run(clocks)
        assert played.time_s == pytest.approx(played.full_time_s, rel=1e-9)
        assert played.energy_j == pytest.approx(played.full_energy_j, rel=1e-9)


@pytest.mark.slow
def test_a_plan_is_judged_by_all_steps_of_the_trace(tmp_path: Path) -> None:
    trace = read_trace(write_trace(tmp_path / "job.csv", trace_rows(micro_batches=8)))
    settings = PFOSettings(scheduler="ParetoScheduler", profile_steps=3)
    play = Play(trace.job(nodes=KIND).cluster(1), tmp_path / "pfo", settings)
    summary = summarize(play, list(play.run(250)))
    assert summary.plan_number is not None
    quiet = trace.job(nuisances=QUIET).cluster()
    played = [quiet.run(quiet.clocks_of([{}, {}])) for _ in trace.steps]
    assert summary.full_time_s == pytest.approx(np.mean([each.time_s for each in played]))
    assert summary.worst_step_late >= summary.slowdown
