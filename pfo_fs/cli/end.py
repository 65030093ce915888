"""`pfo-fs end`: records why Slurm has ended a job; for batch scripts and epilogs."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, get_args

import typer

from pfo_fs.cli.terminal import (
    DirectoryArgument,
    JsonFlag,
    SharedDirOption,
    open_directory,
    print_json,
    say,
    the_directory,
    wrong_usage,
)

if TYPE_CHECKING:
    from pfo_fs.store.bodies import SlurmRun


def end(
    directory: DirectoryArgument = None,
    shared_dir: SharedDirOption = None,
    exit_code: Annotated[
        int | None, typer.Option(help="Exit code of training, after it has ended.", min=0, max=255)
    ] = None,
    cause: Annotated[
        str | None, typer.Option(help="Why the job ends, where the batch script knows; otherwise Slurm is asked.")
    ] = None,
    json_: JsonFlag = False,
) -> None:
    """Record why Slurm has ended a job: call it in the batch script, or in the epilog."""
    from pfo_fs.coordination.batch_end import record_slurm_end
    from pfo_fs.store.bodies import Cause

    if cause is not None and cause not in get_args(Cause):
        wrong_usage(f"--cause {cause!r}: it can be {', '.join(get_args(Cause))}")
    run = _slurm_run()
    shared = open_directory(the_directory(directory, shared_dir))
    recorded = record_slurm_end(shared, run, exit_code=exit_code, cause=cause)  # type: ignore[arg-type]
    if json_:
        print_json(recorded)
    else:
        for job_id, why in recorded.items():
            say(f"{job_id}: {why}")


def _slurm_run() -> SlurmRun:
    """Returns the run of the Slurm job of this process; the epilog has another name for the number of restarts."""
    from pfo_fs.store.bodies import SlurmRun

    job_id = os.environ.get("SLURM_JOB_ID")
    if not job_id:
        wrong_usage("SLURM_JOB_ID is not set: call `pfo-fs end` in a batch script or an epilog of Slurm")
    restarts = os.environ.get("SLURM_JOB_RESTART_COUNT") or os.environ.get("SLURM_RESTART_COUNT") or "0"
    return SlurmRun(job_id=job_id, restarts=int(restarts), cluster=os.environ.get("SLURM_CLUSTER_NAME", ""))
