"""Data-parallel jobs with sequences of unequal lengths, played with the code that decides in real jobs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pfo_fs.cli import app
from pfo_fs.device.simulated.physics import A40, A100, GpuModel
from pfo_fs.errors import PlanError
from pfo_fs.simulator.uneven_job import MODELS, drawn_steps, play, read_lengths

LONG = {"micro_batches": 2, "context": 131_072, "median": 12_000, "sigma": 1.2}


@pytest.mark.parametrize("seed", [11, 12])
def test_long_contexts_save_much_and_lose_no_more_time_than_is_allowed(seed: int) -> None:
    summary, _ = play(drawn_steps(16, **LONG, seed=seed), A100, MODELS["8B"], steps=range(120), seed=seed)
    assert summary.run_saved > 0.1
    assert summary.run_late < 1e-3
    assert summary.plan_saved > summary.run_saved
    assert summary.balanced > 0.1


@pytest.mark.parametrize("gpu", [A100, A40], ids=["A100", "A40"])
def test_what_the_status_says_is_what_was_saved(gpu: GpuModel) -> None:
    summary, state = play(drawn_steps(16, **LONG, seed=3), gpu, MODELS["8B"], steps=range(120))
    assert state.saved is not None
    assert state.saved_error is not None
    assert abs(state.saved - summary.run_saved) < 2 * state.saved_error < 0.02
    assert state.late is not None
    assert state.late_error is not None
    assert abs(state.late - summary.run_late) < 2 * state.late_error < 0.02


@pytest.mark.parametrize("noise", [0.0, 0.03])
def test_equal_work_saves_nothing_and_is_not_called_unequal(noise: float) -> None:
    summary, _ = play(lambda _: [[[4096] * 8]] * 8, A100, MODELS["8B"], noise=noise, steps=range(60))
    assert abs(summary.run_saved) < 0.01
    assert summary.run_late < 1e-3
    assert summary.balanced < 0.01


@pytest.fixture
def lengths(tmp_path: Path) -> Path:
    """Twelve steps of two ranks; rank 1 has more in even steps."""
    rows = ["step,dp_rank,micro_batch,length"]
    for step in range(12):
        rows += [f"{step},{rank},{m},{8000 if (step + rank) % 2 else 3000}" for rank in (0, 1) for m in (0, 1)]
    path = tmp_path / "lengths.csv"
    path.write_text("\n".join(rows))
    return path


def test_lengths_are_read_by_step_rank_and_micro_batch(lengths: Path) -> None:
    steps = read_lengths(lengths)
    assert len(steps) == 12
    assert steps[0] == [[[3000], [3000]], [[8000], [8000]]]


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


def test_the_command_shows_savings_and_names_balanced_batches_first(lengths: Path) -> None:
    shown = CliRunner().invoke(app, ["loads", "--iterations", "60", "--ranks", "8", "--context", "131072"])
    assert shown.exit_code == 0, shown.output
    assert shown.output.startswith("Batches of equal work")
    assert "against" in shown.output
    assert "control steps" in shown.output
    from_file = CliRunner().invoke(app, ["loads", str(lengths), "--json"])
    assert from_file.exit_code == 0, from_file.output
    assert json.loads(from_file.output)["summary"]["iterations"] == 12
