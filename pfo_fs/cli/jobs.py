"""How commands name a job."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pfo_fs.cli.terminal import fail, open_directory

if TYPE_CHECKING:
    from pfo_fs.store import JobFolder

Job = Annotated[str, typer.Argument(help="Job id, the path of its folder, or 'latest'.")]
SharedDirOption = Annotated[
    Path | None,
    typer.Option("--shared-dir", "-d", help="The shared directory, unless JOB is a path.", envvar="PFO_FS_SHARED_DIR"),
]


def find_job(job: str, shared_dir: Path | None) -> JobFolder:
    """The folder of a job that is given by id (with a shared directory), by path, or as `latest`."""
    path = Path(job)
    if shared_dir is None and path.parent.name == "jobs" and path.is_dir():
        path = path.resolve()
        return open_directory(path.parent.parent).job(path.name)
    if shared_dir is None:
        fail(f"{job!r}: give the path of the job's folder, or --shared-dir (or PFO_FS_SHARED_DIR)")
    shared = open_directory(shared_dir)
    ids = shared.job_ids()
    if job == "latest":
        if not ids:
            fail(f"{shared_dir} has no jobs")
        job = ids[-1]
    matches = [job] if job in ids else [job_id for job_id in ids if job in job_id]
    if len(matches) != 1:
        fail(f"{job!r} is no job in {shared_dir}" + (f"; it could be {', '.join(matches[:5])}" if matches else ""))
    return shared.job(matches[0])


def job_and_ranks(folder: JobFolder) -> tuple[Any, list[Any]]:
    """`job.json` and what the ranks have registered."""
    body = folder.read_job()
    if body is None:
        fail(f"{folder.files.root / folder.path}: job.json is not there")
    ranks = [folder.read_rank(rank) for rank in folder.registered_ranks()]
    return body, [rank.rank_info for rank in ranks if rank is not None]
