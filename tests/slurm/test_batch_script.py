"""The batch script of `examples/slurm`, with stand-ins for Slurm's commands: what no cluster does on demand."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "examples" / "slurm" / "train.sbatch"


def test_a_second_sigterm_while_the_end_is_recorded_does_not_keep_the_job_from_being_requeued(tmp_path: Path) -> None:
    """At its time limit, Slurm signals all processes of a job, and again a moment later."""
    commands = {
        "srun": "exit 143",
        "scontrol": f'[ "$1" != requeue ] || touch {tmp_path}/requeued',
        "pfo-fs": 'case "$*" in *--exit-code*) kill -TERM "$PPID" $$ && sleep 0.1; echo "job: time limit";; esac',
    }
    for name, text in commands.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{text}\n")
        (tmp_path / name).chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "7"}
    done = subprocess.run(["bash", str(SCRIPT)], env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 143
    assert "job: time limit" in done.stdout
    assert (tmp_path / "requeued").exists()
