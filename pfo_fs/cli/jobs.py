"""Finds the job that the user names on the command line."""

from __future__ import annotations

import os
from collections.abc import Iterable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument

from pfo_fs.cli.terminal import fail, open_directory, print_json, say, wrong_usage

if TYPE_CHECKING:
    from pfo_fs.store import JobFolder, SharedDirectory

JOB_HELP = "Job id or a part of it, the path of the job's folder, or 'latest': the running job that began last."
Job = Annotated[str, Argument(help=JOB_HELP)]
JobOrNone = Annotated[str | None, Argument(help=JOB_HELP)]

NOT_IN_FORCE = 3
"""Exit code of a command that has done its part, if no process follows it, or none in time."""
_CLOCKS_DIFFER = timedelta(minutes=5)
_MOST_NAMED = 5
"""An error names at most this many jobs, so that they fit on its line."""


def find_job(job: str, shared_dir: Path | None, *, archived: bool = False, writes: bool = False) -> JobFolder:
    """Returns the folder of a job that is given by id or part of it (with a shared directory), by path, or as `latest`.

    `latest` and, if possible, a part of an id stand for folders whose `job.json` can be read. If the command `writes`,
    the job must not have ended; then `latest` must run, and it must be clear which job that is.
    """
    from pfo_fs.store import bodies

    named_in = None if "/" in job else shared_dir
    folder = _by_path(job, archived) if named_in is None else _by_name(job, named_in, archived, writes)
    if writes and folder.read(bodies.EndBody) is not None:
        fail(f"job {folder.job_id} has ended; `pfo-fs status` lists the running ones")
    return folder


def _by_path(job: str, archived: bool) -> JobFolder:
    path = Path(job)
    folders = ("jobs", "archive") if archived else ("jobs",)
    if path.parent.name not in folders or not path.is_dir():
        if "/" in job or path.suffix[1:].isalpha():
            why = "this is no job" if path.exists() else "there is no such file or folder"
            wrong_usage(f"{job}: {why}. (For a job, also give its directory by -d.)")
        wrong_usage(f"job {job!r}: name its directory by -d (--shared-dir, PFO_FS_SHARED_DIR), or give its folder")
    path = path.resolve()
    return open_directory(path.parent.parent).job(path.name, archived=path.parent.name == "archive")


def _by_name(job: str, shared_dir: Path, archived: bool, writes: bool) -> JobFolder:
    shared = open_directory(shared_dir)
    live, over = shared.job_ids(), shared.archived_job_ids() if archived else []
    if job == "latest":
        return _latest(shared, live, over, writes=writes)
    named = [shared.job(job_id) for job_id in live if job in job_id]
    named += [shared.job(job_id, archived=True) for job_id in over if job in job_id]
    exact = [folder for folder in named if folder.job_id == job]
    matches = exact[:1] or [folder for folder in named if _began(folder) is not None] or named[:1]
    if len(matches) != 1:
        if matches:
            names = ", ".join(folder.job_id for folder in matches[:_MOST_NAMED])
            fail(f"{job!r} is in the names of {len(matches)} jobs in {shared_dir}; give more of the name: {names}")
        missing = "" if os.path.exists(job) else ", and there is no such file or folder"
        fail(f"{job!r} is not a job in {shared_dir}{missing}; `pfo-fs status {shared_dir}` lists the jobs")
    return matches[0]


def tell_written(folder: JobFolder, text: str, document: dict[str, object], as_json: bool) -> None:
    """Says that a job's `schedule.yaml` was changed; exit code 3 if the job is off, or no process would apply that."""
    from pfo_fs.reports.status import who_applies
    from pfo_fs.store import OffSwitch, SharedDirectory, bodies

    claim = folder.read(bodies.ClaimBody)
    applied_by = who_applies(SharedDirectory(folder.files), folder)
    problem = ""
    if OffSwitch(folder.files).read().covers(folder.job_id):
        problem = "this job is switched off: nothing applies this before `pfo-fs on`"
    elif not applied_by and claim is not None and claim.kind == "local":
        problem = "rank 0, which schedules this job itself, gives no sign of life: nothing applies this"
    elif (job := folder.read_job()) is not None and job.coordination == "none":
        problem = f"no process applies this: the job sets one {job.scheduler.replace('_', ' ')} itself"
    elif not applied_by:
        problem = f"no daemon runs: nothing applies this. For default clocks now: `pfo-fs off {folder.job_id}`"
    if as_json:
        print_json({**document, "job_id": folder.job_id, "applied_by": applied_by or None})
    else:
        say(f"job {folder.job_id}: {text}")
    if problem:
        fail(problem, NOT_IN_FORCE)


def _latest(shared: SharedDirectory, live: Iterable[str], over: Iterable[str], *, writes: bool) -> JobFolder:
    """Returns the job that began last by its own record; if jobs run, only these count."""
    jobs = _by_begin(map(shared.job, live))
    running = [one for one in jobs if not _has_ended(one[1])]
    if writes and not running:
        how = f"the last one, {jobs[-1][1].job_id}, has ended" if jobs else "there is none"
        fail(f"no job runs in {shared.files.root}: {how}")
    if writes and len(running) > 1 and (running[0][0] == _UNKNOWN or running[-2][0] == running[-1][0]):
        names = ", ".join(folder.job_id for _, folder in running[:_MOST_NAMED])
        fail(f"'latest': which of these jobs began last is not known; name one: {names}")
    found = running or jobs or _by_begin(shared.job(job_id, archived=True) for job_id in over)
    if not found:
        fail(f"{shared.files.root} has no jobs")
    return found[-1][1]


def _by_begin(folders: Iterable[JobFolder]) -> list[tuple[datetime, JobFolder]]:
    """Returns jobs, sorted by their begin and name."""
    jobs = [(began, folder) for folder in folders if (began := _began(folder)) is not None]
    return sorted(jobs, key=lambda one: (one[0], one[1].job_id))


_UNKNOWN = datetime.min.replace(tzinfo=timezone.utc)


def _began(folder: JobFolder) -> datetime | None:
    """Returns when a job began; `_UNKNOWN` if it does not say, or names a future time; None if there is no job."""
    from pfo_fs.reports.collect import Quietly

    if (body := Quietly([])(folder.read_job)) is None:
        return None
    try:
        began = datetime.fromisoformat(body.started)
    except ValueError:
        return _UNKNOWN
    began = began if began.tzinfo is not None else began.replace(tzinfo=timezone.utc)
    return began if began <= datetime.now(timezone.utc) + _CLOCKS_DIFFER else _UNKNOWN


def _has_ended(folder: JobFolder) -> bool:
    from pfo_fs.reports.collect import Quietly
    from pfo_fs.store import layout

    return layout.END in (Quietly([])(folder.names) or ())
