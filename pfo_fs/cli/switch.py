"""`pfo-fs off` and `pfo-fs on`: jobs at default clocks, whether a daemon runs or not."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

from typer import Option

from pfo_fs.cli.jobs import NOT_IN_FORCE, JobOrNone, find_job
from pfo_fs.cli.terminal import (
    JsonFlag,
    SharedDirOption,
    fail,
    open_directory,
    print_json,
    say,
    the_directory,
    wrong_usage,
)

if TYPE_CHECKING:
    from pfo_fs.store import SharedDirectory

_SLOWEST_LOOK_S = 5.0
"""The longest pause between two looks, in s: if the directory is remote, hosts look at the switch that often."""
_MOST_JOBS = 500
"""At most this many jobs are read, the newest: older ones have ended, and on a slow file system they take minutes."""

EveryJob = Annotated[bool, Option("--all", help="All jobs of the directory, also those that begin later.")]
Wait = Annotated[bool, Option("--wait", help="Wait until every rank has followed; exit code 3 if not in time.")]
Timeout = Annotated[float, Option(help="With --wait: seconds after which the command gives up.", min=0.0)]


def off(
    job: JobOrNone = None,
    every: EveryJob = False,
    shared_dir: SharedDirOption = None,
    why: Annotated[str, Option(help="A reason, for those who see the switch.")] = "",
    wait: Wait = False,
    timeout: Timeout = 120.0,
    json_: JsonFlag = False,
) -> None:
    """Switch pfo-fs off: default clocks within seconds, with or without a daemon, until `pfo-fs on`."""
    from pfo_fs.store import OffSwitch

    shared, name = _meant(job, every, shared_dir)
    OffSwitch(shared.files).turn_off(name, why)
    _show(shared, name, True, wait, timeout, json_)


def on(
    job: JobOrNone = None,
    every: EveryJob = False,
    shared_dir: SharedDirOption = None,
    wait: Wait = False,
    timeout: Timeout = 120.0,
    json_: JsonFlag = False,
) -> None:
    """End `pfo-fs off`: schedules are followed again."""
    from pfo_fs.errors import StoreError
    from pfo_fs.store import OffSwitch, layout

    shared, name = _meant(job, every, shared_dir)
    switch = OffSwitch(shared.files)
    path = shared.files.root / layout.off(name)
    try:
        was_off = switch.turn_on(name)
    except StoreError as error:
        fail(f"{path} cannot be removed, remove it by hand: {error.args[-1]}")
    left = switch.read()
    if name in left.names:
        fail(f"{path} is still there: remove it by hand")
    if left.everything:
        fail(f"job {name} stays off: all jobs are ({switch.about(layout.EVERY_JOB)}); `pfo-fs on --all` ends that")
    if not was_off and not json_:
        say(f"{path} was not there: nothing was switched off by that name")
    _show(shared, name, False, wait, timeout, json_)


class Followed(NamedTuple):
    """A job that a switch concerns, and whether all of its ranks have followed."""

    job_id: str
    done: bool
    held_ranks: list[int]
    ranks: int
    text: str


def _meant(job: str | None, every: bool, shared_dir: Path | None) -> tuple[SharedDirectory, str]:
    """Returns the directory, and the name of the switch."""
    from pfo_fs.store import SharedDirectory, layout

    if job == layout.EVERY_JOB:
        wrong_usage("'all' is no job; did you mean --all, all jobs of the directory?")
    if (job is not None) == every:
        wrong_usage("give a job or --all, not both" if every else "name a job, or all of them by --all")
    if job is None:
        return open_directory(the_directory(shared_dir), in_use=True), layout.EVERY_JOB
    folder = find_job(job, shared_dir, writes=True)
    return SharedDirectory(folder.files), folder.job_id


def _show(shared: SharedDirectory, name: str, off: bool, wait: bool, timeout_s: float, as_json: bool) -> None:
    """Shows for each job whether it has followed; with `wait`, once all jobs have followed, or the time is up."""
    from pfo_fs.store import layout

    until_s, pause_s = time.monotonic() + timeout_s, 0.25
    jobs = _jobs(shared, name)
    while wait and not all(job.done for job in jobs) and time.monotonic() < until_s:
        time.sleep(min(pause_s, max(0.0, until_s - time.monotonic())))
        pause_s = min(2 * pause_s, _SLOWEST_LOOK_S)
        jobs = _jobs(shared, name)
    done = all(job.done for job in jobs)
    if as_json:
        print_json({"name": name, "off": off, "done": done, "jobs": [job._asdict() for job in jobs]})
    else:
        who = "all jobs" if name == layout.EVERY_JOB else f"job {name}"
        say(f"{shared.files.root}: {who} switched {'off' if off else 'on'}")
        for job in jobs:
            say(f"  {job.job_id}: ", (job.text, "green" if job.done else "yellow"))
        if not jobs:
            say("  no job runs here now")
        if not done and not wait:
            say("ranks follow within seconds; --wait waits for that, and `pfo-fs status` shows it")
    if wait and not done:
        fail("not all ranks have followed in time; `pfo-fs status` shows their last errors", code=NOT_IN_FORCE)


def _jobs(shared: SharedDirectory, name: str) -> list[Followed]:
    """Returns for each running job that the switch concerns whether all of its ranks have followed."""
    from pfo_fs.reports.collect import Quietly
    from pfo_fs.reports.status import describe_job
    from pfo_fs.store import OffSwitch, layout

    switched, quietly = OffSwitch(shared.files).read(), Quietly([])
    ids = shared.newest_job_ids()[:_MOST_JOBS] if name == layout.EVERY_JOB else [name]
    jobs = []
    for job_id in ids:
        folder = shared.job(job_id)
        names = quietly(folder.names) or ()
        if layout.JOB not in names or (layout.END in names and name == layout.EVERY_JOB):
            continue
        job = describe_job(folder, switched)
        held, size = job.held_ranks, job.job.job_info.world_size if job.job is not None else 0
        if job.end is not None:
            done, text = True, "the job has ended"
        elif job.off:
            done, text = len(held) >= size, job.held_text
        else:
            done, text = not held, f"ranks still held: {len(held)}" if held else "schedules are followed again"
        jobs.append(Followed(job_id, done, held, size, text))
    return jobs
