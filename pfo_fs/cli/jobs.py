"""Finds the job that the user names on the command line."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pfo_fs.cli.terminal import fail, open_directory, wrong_usage

if TYPE_CHECKING:
    from pfo_fs.store import JobFolder

Job = Annotated[str, typer.Argument(help="Job id or a part of it, the path of the job's folder, or 'latest'.")]


def find_job(job: str, shared_dir: Path | None, *, archived: bool = False) -> JobFolder:
    """Returns the folder of a job that is given by id or part of it (with a shared directory), by path, or as `latest`.

    Args:
        job: The argument that the user gave.
        shared_dir: The shared directory; None where `job` is a path.
        archived: Whether to search the archive after the jobs that are not archived.
    """
    path = Path(job)
    folders = ("jobs", "archive") if archived else ("jobs",)
    if shared_dir is None and path.parent.name in folders and path.is_dir():
        path = path.resolve()
        return open_directory(path.parent.parent).job(path.name, archived=path.parent.name == "archive")
    if shared_dir is None:
        wrong_usage(
            f"job {job!r}: name its directory by -d (--shared-dir, PFO_FS_SHARED_DIR), or give the job's folder"
        )
    shared = open_directory(shared_dir)
    live, over = shared.job_ids(), shared.archived_job_ids() if archived else []
    if job == "latest":
        if not live and not over:
            fail(f"{shared_dir} has no jobs")
        job = (live or over)[-1]
    for ids, is_archived in ((live, False), (over, True)):
        if job in ids:
            return shared.job(job, archived=is_archived)
    matches = [(job_id, False) for job_id in live if job in job_id] + [
        (job_id, True) for job_id in over if job in job_id
    ]
    if len(matches) != 1:
        if matches:
            names = ", ".join(job_id for job_id, _ in matches[:5])
            fail(f"{job!r} is in the names of {len(matches)} jobs in {shared_dir}; give more of the name: {names}")
        fail(f"{job!r} is not a job in {shared_dir}; `pfo-fs status {shared_dir}` lists the jobs")
    return shared.job(matches[0][0], archived=matches[0][1])
