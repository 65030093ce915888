"""Every path of the shared directory, and how much of a file is read. No other module has paths.

`RECORDS` says where each kind of record lies, and `bodies.py` what it holds and who writes it. Other names:

<shared_dir>/
  site.yaml                       the site's operator (optional, read-only for pfo-fs): what jobs may do
  off/all, off/<job_id>           `pfo-fs off`, or a user by hand: while the name is there, this job, or all
                                  of them, are at default clocks
  doctor/                         while `pfo-fs doctor --peer` runs on several hosts
  archive/<job_id>/               jobs that have ended, as in jobs/
  jobs/<job_id>/                  all folders of it are there before job.json
    ranks/.<rank>.lock            held while ranks/<rank>.json is written
    sched/<number>/<rank>.json    the coordinator, after the index: another name of this rank's plan, for users
    profile.csv                   the coordinator, replaced: what the job has measured, for `pfo-fs plan` and reports
    schedule.yaml                 a user (optional, read-only for pfo-fs)
    schedule.status.yaml          the coordinator, replaced: whether schedule.yaml is applied, and why not
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from pydantic import BaseModel

from pfo_fs.store import bodies as b
from pfo_fs.store.file_reader import TEMP_PREFIX

RECORD_LIMIT = 256 * 1024
"""Bytes of the largest small record that is read."""
PLAN_LIMIT = 8 * 1024 * 1024
"""Bytes of the largest plan, index or result that is read."""
PROFILE_LIMIT = 2 * 1024 * 1024
"""Bytes of the largest profile that is read."""
YAML_LIMIT = 256 * 1024
"""Bytes of the largest schedule.yaml that is read."""
SITE_LIMIT = 16 * 1024
"""Bytes of the largest site.yaml that is read."""

DIRECTORY = "directory.json"
SITE = "site.yaml"
DAEMON = "daemon.json"
LEADERS = "leaders"
JOBS = "jobs"
ARCHIVE = "archive"
DOCTOR = "doctor"
OFF = "off"
EVERY_JOB = "all"
SPARE = f"{TEMP_PREFIX}spare"
"""In `off/`: an empty file that becomes a switch where a full file system has no room for another file."""

# Below a job's folder.
JOB = "job.json"
COORDINATOR = "coordinator.json"
RANKS = "ranks"
ORDER = "order"
CURRENT = "current.json"
SCHEDULES = "sched"
RESULTS = "prof"
PROGRESS = "progress"
ITERATION_TIMES = "iteration_times"
MODEL = "model.json"
PROFILE = "profile.csv"
CHECK = "check.json"
YAML = "schedule.yaml"
YAML_STATUS = "schedule.status.yaml"
END = "end.json"
OF_PROCESSES = (RANKS, ORDER, RESULTS, PROGRESS, ITERATION_TIMES)
"""The folders into which only the job's own processes write."""
JOB_FOLDERS = (*OF_PROCESSES, SCHEDULES)


@dataclass(frozen=True)
class RecordFile:
    """Where the records of one type lie, and how they are written.

    Attributes:
        kind: The kind that their headers name.
        path: Their path, below the shared directory or a job's folder, with names in braces in place of numbers.
        limit: Bytes of the largest record that is read.
        once: Whether a record is written only once; otherwise its one writer replaces it.
        readable: Whether it is written for people.
    """

    kind: str
    path: str
    limit: int = RECORD_LIMIT
    once: bool = False
    readable: bool = False


RECORDS: dict[type[BaseModel], RecordFile] = {
    b.DirectoryBody: RecordFile("directory", DIRECTORY, once=True),
    b.DaemonBody: RecordFile("daemon", DAEMON),
    b.LeaderBody: RecordFile("leader", f"{LEADERS}/{{generation}}.json", once=True),
    # below a job's folder
    b.JobBody: RecordFile("job", JOB, once=True),
    b.ClaimBody: RecordFile("coordinator", COORDINATOR, once=True),
    b.RanksBody: RecordFile("ranks", f"{RANKS}/{{name}}.json", PLAN_LIMIT, once=True),
    b.OrderBody: RecordFile("order", f"{ORDER}/{{rank}}.json", PLAN_LIMIT),
    b.CurrentBody: RecordFile("current", CURRENT),
    b.PlanBody: RecordFile("schedule", f"{SCHEDULES}/{{number}}/{{name}}", PLAN_LIMIT, once=True, readable=True),
    b.IndexBody: RecordFile("index", f"{SCHEDULES}/{{number}}/index.json", PLAN_LIMIT, once=True),
    b.ResultsBody: RecordFile("results", f"{RESULTS}/{{number}}/{{name}}.json", PLAN_LIMIT, once=True),
    b.ProgressBody: RecordFile("progress", f"{PROGRESS}/{{name}}.json"),
    b.IterationTimesBody: RecordFile("iteration_times", f"{ITERATION_TIMES}/{{rank}}.json"),
    b.ModelBody: RecordFile("model", MODEL),
    b.CheckBody: RecordFile("check", CHECK, once=True),
    b.EndBody: RecordFile("end", END, once=True),
}
FILES = {YAML: YAML_LIMIT, PROFILE: PROFILE_LIMIT}
"""The files in a job's folder that are no records, each with the largest size in bytes at which it is read."""
OF_JOBS = {file.path.split("/")[0] for file in RECORDS.values()} | {*FILES, YAML_STATUS}
"""Names in a job's folder. A folder without `job.json` that holds any other name is not of pfo-fs, and stays: the
shared directory may be the folder of a project, which has its own `jobs/`."""

_NUMBER = re.compile(r"0|[1-9]\d{0,8}")
_LARGEST_GAP = 1000
"""Numbers have gaps where coordinators have died; a larger gap was planted to keep a daemon from going on."""


def job(job_id: str, *, archived: bool = False) -> str:
    """A job's folder, below the shared directory."""
    return f"{ARCHIVE if archived else JOBS}/{job_id}"


def off(name: str) -> str:
    """The switch of one job, or of all (`EVERY_JOB`)."""
    return f"{OFF}/{name}"


def rank_lock(rank: int) -> str:
    """The lock that every writer of a rank's registration holds while it writes."""
    return f"{RANKS}/.{rank}.lock"


def schedule(number: int) -> str:
    """The folder of a schedule."""
    return f"{SCHEDULES}/{number}"


def results(number: int) -> str:
    """The folder of the results under a schedule."""
    return f"{RESULTS}/{number}"


def numbers(names: Iterable[str], suffix: str = "") -> list[int]:
    """Returns the number in every name that is a number and the suffix, ascending; other names are left out."""
    found = (name.removesuffix(suffix) for name in names if name.endswith(suffix))
    return sorted(int(number) for number in found if _NUMBER.fullmatch(number))


def without_jumps(numbers: Iterable[int]) -> list[int]:
    """Returns ascending numbers up to the first gap of more than 1,000.

    Processes count up by one. One planted file with an absurd number must not use up all numbers, nor count as the
    newest of a series. Some missing numbers are allowed, because users delete files.
    """
    kept: list[int] = []
    for number in numbers:
        if number - (kept[-1] if kept else 0) > _LARGEST_GAP:
            break
        kept.append(number)
    return kept
