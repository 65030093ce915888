"""The batch script of `examples/slurm`, with stand-ins for Slurm's commands: what no cluster does on demand."""

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "examples" / "slurm" / "train.sbatch"
TIME_LIMIT, PREEMPTED, CANCELLED = "TimeLimit  N/A", "None  2026-11-28T12:00:00", "None  N/A"


@pytest.mark.parametrize(("said", "requeued"), [(TIME_LIMIT, True), (PREEMPTED, True), (CANCELLED, False)])
def test_what_slurm_ends_at_a_limit_or_preempts_goes_on_after_that(tmp_path: Path, said: str, requeued: bool) -> None:
    """At its time limit, Slurm signals all processes of a job, and again a moment later."""
    commands = {
        "srun": "exit 143",
        "scontrol": f'[ "$1" != requeue ] || touch {tmp_path}/requeued',
        "squeue": f'kill -TERM "$PPID" $$ && sleep 0.1; echo "{said}"',
    }
    for name, text in commands.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{text}\n")
        (tmp_path / name).chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "7"}
    done = subprocess.run(["bash", str(SCRIPT)], env=environment, capture_output=True, text=True)
    assert done.returncode == 143
    assert (tmp_path / "requeued").exists() == requeued
