"""Traced jobs whose clocks come from loads."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from pfo_fs.errors import PlanError
from pfo_fs.simulator import Trace, read_trace
from pfo_fs.simulator.load_play import LoadPlay, LoadSummary, last_stage, loads_of

STEPS, PIPELINES, MICRO_BATCHES = 12, 4, 3


@pytest.fixture(scope="module")
def trace_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two stages; each micro-batch has its own work, which all of its instructions feel."""
    path = tmp_path_factory.mktemp("traces") / "uneven.csv"
    rng = np.random.default_rng(5)
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["step", "dp_rank", "stage", "instruction", "micro_batch", "time_s", "load"])
        for step in range(STEPS):
            for dp_rank in range(PIPELINES):
                for micro_batch in range(MICRO_BATCHES):
                    load = rng.uniform(0.5, 2.0)
                    for stage in range(2):
                        for name, seconds in (("forward", 0.1), ("backward", 0.2)):
                            time_s = seconds * load * rng.normal(1, 0.003)
                            rows.writerow([step, dp_rank, stage, name, micro_batch, f"{time_s:.6f}", f"{load:.6f}"])
    return path


@pytest.fixture(scope="module")
def trace(trace_file: Path) -> Trace:
    return read_trace(trace_file)


def played(trace: Trace, source: str, iterations: int = 60) -> LoadSummary:
    return LoadPlay(trace, trace.job().cluster(1), loads_of(trace, source, 1), 1).run(iterations)


@pytest.mark.parametrize("pipeline", [True, False], ids=["pipeline", "last stage alone"])
def test_loads_that_a_trace_shows_save_energy_at_no_time(trace: Trace, pipeline: bool) -> None:
    found = played(trace if pipeline else last_stage(trace), "trace")
    assert found.begins_at == 11
    assert "control steps" in found.status_text
    assert found.plan_saved > 0.08
    assert found.run_saved > 0.05
    assert found.run_late < 0.0003
    assert found.balanced > 0.1


def test_a_slow_worker_is_no_reason_to_balance_batches(tmp_path: Path) -> None:
    path = tmp_path / "slow.csv"
    rows = [
        f"{step},{dp_rank},0,{name},{micro_batch},{seconds * (1.4 if dp_rank else 1.0)}"
        for step in range(STEPS)
        for dp_rank in range(2)
        for micro_batch in range(MICRO_BATCHES)
        for name, seconds in (("forward", 0.1), ("backward", 0.2))
    ]
    path.write_text("\n".join(["step,dp_rank,stage,instruction,micro_batch,time_s", *rows]) + "\n")
    assert played(read_trace(path), "trace", 12).balanced == pytest.approx(0.0, abs=1e-9)


def test_loads_of_a_file_do_as_well(trace: Trace, trace_file: Path) -> None:
    assert played(trace, str(trace_file)).plan_saved == pytest.approx(played(trace, "trace").plan_saved, abs=0.01)


def test_shuffled_loads_save_nothing_and_cost_nothing(trace: Trace) -> None:
    found = played(trace, "shuffled")
    assert found.run_saved == pytest.approx(0.0, abs=1e-9)
    assert found.run_late == pytest.approx(0.0, abs=1e-9)
    assert found.begins_at is None
    assert "all clocks stay the highest" in found.status_text


def test_a_file_without_a_micro_batch_of_the_trace_is_refused(trace: Trace, tmp_path: Path) -> None:
    path = tmp_path / "loads.csv"
    path.write_text("step,dp_rank,micro_batch,load\n0,0,0,1.0\n")
    with pytest.raises(PlanError, match="no load for"):
        loads_of(trace, str(path), 0)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("step,dp_rank\n0,0\n", "column micro_batch, load is missing"),
        ("step,dp_rank,micro_batch,load\n0,0,0,heavy\n", "row 2, column load: 'heavy' is not a number"),
        ("step,dp_rank,micro_batch,load\n0,0,0,-1\n", "row 2, column load: '-1' is not a number from 0"),
        ("step,dp_rank,micro_batch,load\n0,0,0,inf\n", "row 2, column load: 'inf' is not a number from 0"),
        ("step,dp_rank,micro_batch,load\n0,0,0,1\n\n0,0,0,2\n", "row 4.*'2' is another load of .* that in row 2"),
    ],
)
def test_a_file_that_is_no_table_of_loads_is_refused(trace: Trace, tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "loads.csv"
    path.write_text(text)
    with pytest.raises(PlanError, match=said):
        loads_of(trace, str(path), 0)
