"""What all jobs of a shared directory took and saved, by user and day."""

import pwd
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from pfo_fs.errors import RecordError, StoreError, plain_text
from pfo_fs.reports.collect import collect_job
from pfo_fs.reports.savings import savings_of, total_of
from pfo_fs.reports.summary import whole_job_slower
from pfo_fs.reports.verdict import MUCH_SLOWER, Verdict, verdict_of
from pfo_fs.store import JobFolder, SharedDirectory


@dataclass(frozen=True)
class JobRow:
    """One job; energies in kWh of GPUs, profiling included.

    Attributes:
        saved_kwh: Energy saved against max clocks; negative: more was used; None: not known.
        more_time: Additional time against max clocks, relative; None: not known.
        verdict: What the schedule in force, or the last one, saves and costs.
        problem: Why figures are missing, or that the job was much slower; else empty.
    """

    job_id: str
    user: str
    day: str
    state: str
    ended: bool = False
    iterations: int = 0
    hours: float = 0.0
    energy_kwh: float | None = None
    saved_kwh: float | None = None
    more_time: float | None = None
    verdict: Verdict | None = None
    problem: str = ""

    @property
    def is_slower(self) -> bool:
        """Whether people notice that the job was slower."""
        return self.more_time is not None and self.more_time > MUCH_SLOWER


def collect_directory(shared: SharedDirectory, progress: Callable[[str], object] = lambda _: None) -> list[JobRow]:
    """Reads all jobs of a directory, archived ones too, oldest first."""
    folders = [shared.job(job_id, archived=True) for job_id in shared.archived_job_ids()]
    folders += [shared.job(job_id) for job_id in shared.job_ids()]
    rows = []
    for place, folder in enumerate(folders):
        progress(f"reading job {place + 1} of {len(folders)} ...")
        rows.append(job_row(folder))
    return sorted(rows, key=lambda row: (row.day, row.job_id))


def job_row(folder: JobFolder) -> JobRow:
    """Returns the figures of a job; what cannot be read is its problem."""
    user, job_id = owner_of(folder), plain_text(folder.job_id)
    try:
        data = collect_job(folder)
    except (RecordError, StoreError) as error:
        return JobRow(job_id, user, folder.job_id[:10], "unreadable", problem=plain_text(str(error.args[-1])))
    day = plain_text(data.job.started[:10] or folder.job_id[:10])
    savings = savings_of(data)
    row = JobRow(job_id, user, day, data.text, data.is_over, data.last_step + 1, verdict=verdict_of(data))
    if (total := total_of(data, savings)) is None:
        return replace(row, problem="no energy of an iteration was measured")
    row = replace(row, iterations=total.iterations, hours=total.time_s / 3600, energy_kwh=total.energy_j / 3.6e6)
    if not total.compared:
        why = "its iterations differ in work" if savings.work_differs else "max clocks were not measured"
        return replace(row, problem=f"not compared: {why}")
    saved_kwh, more_time = -total.more_energy_j / 3.6e6, total.more_time_s / (total.time_s - total.more_time_s)
    return replace(row, saved_kwh=saved_kwh, more_time=more_time, problem=whole_job_slower(data, total))


def owner_of(folder: JobFolder) -> str:
    """Returns the name of the user who owns the job's folder (see `user_name`), or `unknown` if it cannot be read."""
    try:
        return user_name((Path(folder.files.root) / folder.path).stat().st_uid)
    except OSError:
        return "unknown"


def user_name(number: int) -> str:
    """Returns the name of a user, or the number where this host does not know the user."""
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


@dataclass
class Sums:
    """Jobs, with energy and saved energy in kWh; jobs whose saving is not known add nothing to `saved_kwh`."""

    jobs: int = 0
    energy_kwh: float = 0.0
    saved_kwh: float = 0.0
    jobs_without_figures: int = 0


def sums(rows: list[JobRow], key: Callable[[JobRow], str]) -> dict[str, Sums]:
    """Returns the sums of the rows for each value of a key, sorted."""
    groups: dict[str, Sums] = {}
    for row in sorted(rows, key=key):
        group = groups.setdefault(key(row), Sums())
        group.jobs += 1
        group.energy_kwh += row.energy_kwh or 0.0
        group.saved_kwh += row.saved_kwh or 0.0
        group.jobs_without_figures += row.saved_kwh is None
    return groups
