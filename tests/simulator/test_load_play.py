"""Traced jobs whose clocks come from loads."""

from itertools import product
from pathlib import Path

import numpy as np
import pytest
from commands import pfo_fs

from pfo_fs.device.simulated.physics import A100
from pfo_fs.device.simulated.physics import MODELS as GPUS
from pfo_fs.errors import PlanError
from pfo_fs.simulator import Trace, read_trace
from pfo_fs.simulator.load_play import LoadPlay, LoadSummary, last_stage, loads_of
from pfo_fs.simulator.uneven_job import MODELS, drawn_steps, play, read_lengths


@pytest.fixture(scope="module")
def trace_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two stages; each micro-batch has its own work, which all of its instructions feel."""
    path, rng = tmp_path_factory.mktemp("traces") / "uneven.csv", np.random.default_rng(5)
    rows = ["step,dp_rank,stage,instruction,micro_batch,time_s,load"]
    for step, dp_rank, micro_batch in product(range(12), range(4), range(3)):
        load = rng.uniform(0.5, 2.0)
        for stage, (name, seconds) in product(range(2), (("forward", 0.1), ("backward", 0.2))):
            time_s = seconds * load * rng.normal(1, 0.003)
            rows.append(f"{step},{dp_rank},{stage},{name},{micro_batch},{time_s:.6f},{load:.6f}")
    path.write_text("\n".join(rows))
    return path


@pytest.fixture(scope="module")
def trace(trace_file: Path) -> Trace:
    return read_trace(trace_file)


def played(trace: Trace, source: str) -> LoadSummary:
    return LoadPlay(trace, trace.job().cluster(1), loads_of(trace, source), 1).run(60)


@pytest.mark.parametrize("pipeline", [True, False], ids=["pipeline", "last stage alone"])
def test_loads_that_a_trace_shows_save_energy_at_no_time(trace: Trace, pipeline: bool) -> None:
    found = played(trace if pipeline else last_stage(trace), "trace")
    assert found.begins_at == 11
    assert "control steps" in found.status_text
    assert found.plan_saved > 0.08
    assert found.run_saved > 0.05
    assert found.run_late < 0.0003
    assert found.balanced > 0.1


def test_loads_of_a_file_do_as_well(trace: Trace, trace_file: Path) -> None:
    assert played(trace, str(trace_file)).plan_saved == pytest.approx(played(trace, "trace").plan_saved, abs=0.01)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("step,dp_rank,micro_batch,load\n0,0,0,1.0\n", "no load for"),
        ("step,dp_rank,micro_batch,load\n0,0,0,inf\n", "row 2, column load: 'inf' is not a number from 0"),
        ("step,dp_rank,micro_batch,load\n0,0,0,1\n\n0,0,0,2\n", "row 4.*'2' is another load of .* that in row 2"),
    ],
)
def test_a_file_that_is_no_table_of_loads_is_refused(trace: Trace, tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "loads.csv"
    path.write_text(text)
    with pytest.raises(PlanError, match=said):
        loads_of(trace, str(path))


# ---- a data-parallel job whose ranks get unequal sequences


LONG = {"micro_batches": 2, "context": 131_072, "median": 12_000, "sigma": 1.2}


@pytest.mark.parametrize("gpu", GPUS)
def test_long_contexts_save_and_lose_no_more_time_than_is_allowed_on_each_kind_of_gpu(gpu: str) -> None:
    summary = play(drawn_steps(16, **LONG, seed=11), GPUS[gpu], MODELS["8B"], steps=range(120), seed=11)
    assert summary.run_saved > 0.08
    assert summary.run_late < 1e-3
    # An H100's highest clock wanders: that may look like lost time, and then clocks are left alone for a while.
    assert summary.plan_saved > summary.run_saved or gpu == "H100"
    assert summary.balanced > 0.1


@pytest.mark.parametrize("noise", [0.0, 0.03])
def test_equal_work_saves_nothing_and_is_not_called_unequal(noise: float) -> None:
    summary = play(lambda _: [[[4096] * 8]] * 8, A100, MODELS["8B"], noise=noise, steps=range(60))
    assert abs(summary.run_saved) < 0.01
    assert summary.run_late < 1e-3
    assert summary.balanced < 0.01


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("step,dp_rank,micro_batch\n0,0,0", "column length is missing"),
        ("step,dp_rank,micro_batch,length\n0,0,0,5.5", "row 2, column length: '5.5' is not a whole number"),
        ("step,dp_rank,micro_batch,length\n0,0,0,-1", "row 2, column length: '-1' is not a whole number from 0"),
        ("step,dp_rank,micro_batch,length\n0,0,0,5\n0,1,0,5\n1,0,0,5", "step 1 has no sequence of dp_rank 1"),
        ("step,dp_rank,micro_batch,length\n0,0,0,5", "1 rank"),
        ("step,dp_rank,micro_batch,length\n0,0,0,0\n0,1,0,0", "lengths.csv: all lengths of the first 10 steps are 0"),
    ],
)
def test_a_file_that_cannot_be_played_says_where_it_is_wrong(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "lengths.csv"
    path.write_text(text)
    with pytest.raises(PlanError, match=message):
        read_lengths(path)


def test_the_command_shows_savings_and_names_balanced_batches_first(tmp_path: Path) -> None:
    shown = pfo_fs("loads", "--iterations", 60, "--ranks", 8, "--context", 131072, code=0)
    assert shown.stdout.startswith("Batches of equal work")
    assert "against" in shown.stdout
    assert "control steps" in shown.stdout
    rows = [f"{s},{rank},{m},{8000 if (s + rank) % 2 else 3000}" for s, rank, m in product(range(12), (0, 1), (0, 1))]
    (tmp_path / "lengths.csv").write_text("\n".join(["step,dp_rank,micro_batch,length", *rows]))
    assert pfo_fs("loads", tmp_path / "lengths.csv", "--json").answer["summary"]["iterations"] == 12
