"""What `pfo-fs status` shows: the state of daemon and jobs in the shared directory, on one screen."""

import time
from collections import Counter, deque
from collections.abc import Iterator

from pydantic import BaseModel
from rich.console import Group
from rich.text import Text

from pfo_fs.autotune.goals import IMPOSSIBLE
from pfo_fs.coordination import read_site_policy
from pfo_fs.errors import RecordError, StoreError, plain_text
from pfo_fs.loads_known import LoadsKnown
from pfo_fs.reports.collect import Quietly, read_state
from pfo_fs.reports.directory import owner_of
from pfo_fs.reports.verdict import MUCH_SLOWER, Verdict, verdict_of
from pfo_fs.reports.wording import counted, energy_text, switching_text, term_text
from pfo_fs.store import JobFolder, OffSwitch, SharedDirectory, SwitchedOff, bodies, layout

_STATE_STYLE = {"running": "green", "waiting": "yellow", "broken": "bold red", "ended": "dim"}
_quietly = Quietly(deque(maxlen=0))
"""Records that cannot be read are left out of the screen; those of jobs are reported."""
_HEARTBEAT_WAIT_S = 1.5
_LOCAL_SIGN_WITHIN_S = 8.0
_MOST_FOLDERS, _MOST_ENDED = 500, 5
_MOST_SECONDS = 10.0
_MOST_HOSTS = 2000
"""Progress is read from at most this many hosts of a job."""


class JobStatus(BaseModel):
    """One job of a directory: its records as they were read, and what follows from them.

    Attributes:
        off: Whether the job is switched off, alone or with all jobs; `off_about` says who has switched it off alone.
        state: `waiting`, `running`, `broken` or `ended`.
        problem: What cannot be read; empty if nothing. If that is `job.json`, nothing below is known.
        term: Which ranks follow the schedule in force, and until when.
        iter_energy_j: Energy of all GPUs in the last iteration; None while that of a rank is not known.
        energy_j: Energy of all iterations; where ranks do not report it, as if each had taken as much as the last one.
        clocks_mhz: The clocks that are set now, without repetitions; `clock_backends`: how, with the number of ranks.
    """

    job_id: str
    user: str = ""
    off: bool
    off_about: str = ""
    state: str = "waiting"
    problem: str = ""
    job: bodies.JobBody | None = None
    claim: bodies.ClaimBody | None = None
    current: bodies.CurrentBody | None = None
    model: bodies.ModelBody | None = None
    end: bodies.EndBody | None = None
    end_text: str = ""
    term: str = ""
    ranks: list[bodies.RankProgress] = []
    ranks_registered: int = 0
    held_ranks: list[int] = []
    step: int = -1
    iter_time_s: float | None = None
    iter_energy_j: float | None = None
    energy_j: float | None = None
    clocks_mhz: list[int] = []
    clock_backends: dict[str, int] = {}
    undo_owed: int = 0
    undo_failures: int = 0
    last_error: str = ""
    loads: LoadsKnown | None = None
    verdict: Verdict = Verdict()

    @property
    def held_text(self) -> str:
        """Says how many ranks have let go of their clocks."""
        if self.job is None:
            return "its ranks cannot be read"
        size = self.job.job_info.world_size
        missing = sorted(set(range(size)).difference(self.held_ranks))
        if not missing:
            return f"all {size} ranks are at default clocks"
        first = ", ".join(map(str, missing[:8])) + (", ..." if len(missing) > 8 else "")
        return f"{len(self.held_ranks)} of {size} ranks report default clocks; not yet: {first}"


class DaemonStatus(bodies.DaemonBody):
    """The daemon's record, and whether the daemon gives signs of life."""

    alive: bool


class DirectoryStatus(BaseModel):
    """The daemon of a directory and its jobs: those that run and some that have ended, the newest first.

    `off_about` says who has switched all jobs off; None: they are not. `folders_without_job` counts the folders that
    were read and hold no job; `jobs_not_shown`, all other jobs and folders.
    """

    shared_dir: str
    daemon: DaemonStatus | None
    site_problem: str
    off_about: str | None
    jobs: list[JobStatus]
    folders_without_job: int
    jobs_not_shown: int
    archived_jobs: int


def collect_status(shared: SharedDirectory, live: int = 50) -> DirectoryStatus:
    """Reads the state of daemon and jobs: at most 500 folders and `live` running jobs, and for about 10 s."""
    told, since_s = _quietly(shared.read_daemon), time.monotonic()
    switch = OffSwitch(shared.files)
    switched = _quietly(switch.read) or SwitchedOff()
    ids = shared.newest_job_ids()
    running: list[JobStatus] = []
    over: list[JobStatus] = []
    empty = 0
    for job_id in ids[:_MOST_FOLDERS]:
        if len(running) == live or time.monotonic() - since_s > _MOST_SECONDS:
            break
        folder = shared.job(job_id)
        names = _quietly(folder.names) or set()
        if layout.JOB not in names:
            empty += 1
        elif layout.END not in names:
            running.append(describe_job(folder, switched))
        elif len(over) < _MOST_ENDED:
            over.append(describe_job(folder, switched))
    daemon = None if told is None else _with_sign_of_life(shared, told, since_s)
    return DirectoryStatus(
        shared_dir=plain_text(str(shared.files.root)),
        daemon=daemon,
        site_problem=site.problem if (site := _quietly(read_site_policy, shared)) else "",
        off_about=switch.about(layout.EVERY_JOB) if switched.everything else None,
        jobs=running + over,
        folders_without_job=empty,
        jobs_not_shown=len(ids) - len(running) - len(over) - empty,
        archived_jobs=len(shared.archived_job_ids()),
    )


def _with_sign_of_life(shared: SharedDirectory, told: bodies.DaemonBody, since_s: float) -> DaemonStatus:
    """The daemon is alive if its counter changes within 1.5 s; the times of two hosts are not compared."""
    before = told.generation, told.counter
    while not told.stopped and (told.generation, told.counter) == before:
        is_last = time.monotonic() - since_s >= _HEARTBEAT_WAIT_S
        told = _quietly(shared.read_daemon) or told
        if is_last:
            break
        time.sleep(0.1)
    return DaemonStatus(**told.model_dump(), alive=not told.stopped and (told.generation, told.counter) != before)


def who_applies(shared: SharedDirectory, folder: JobFolder) -> str:
    """Returns which process would apply a change of a job's `schedule.yaml`; empty if none shows that it runs.

    A daemon shows that by its heartbeat; rank 0 of a job that schedules itself, by a new record within some seconds.
    """
    job, claim = _quietly(folder.read_job), _quietly(folder.read, bodies.ClaimBody)
    if job is not None and job.coordination == "none":
        return ""
    if claim is None or claim.kind == "daemon":
        told = _quietly(shared.read_daemon)
        return "daemon" if told is not None and _with_sign_of_life(shared, told, time.monotonic()).alive else ""
    signs = (f"{layout.PROGRESS}/0.json", layout.YAML_STATUS, layout.CURRENT)

    def seen() -> list[bytes | None]:
        return [_quietly(folder.files.read, f"{folder.path}/{name}", layout.RECORD_LIMIT) for name in signs]

    before, until_s = seen(), time.monotonic() + _LOCAL_SIGN_WITHIN_S
    while seen() == before:
        if time.monotonic() > until_s:
            return ""
        time.sleep(0.2)
    return "rank 0"


def describe_job(folder: JobFolder, switched: SwitchedOff | None = None) -> JobStatus:
    """Reads the state of one job; `switched` is read from the directory if it is not given."""
    switch = OffSwitch(folder.files)
    switched = switched or _quietly(switch.read) or SwitchedOff()
    off = switched.covers(folder.job_id)
    try:
        state = read_state(folder, _MOST_HOSTS)
        ranks, loads = sorted(state.progress, key=lambda rank: rank.rank), state.loads
        energies = [rank.iter_energy for rank in ranks if rank.iter_energy is not None]
        iter_energy_j = sum(energies) if energies and len(energies) == state.job.job_info.world_size else None
        ways = Counter(rank.clock_backend for rank in ranks if rank.clock_backend)
        step, number = max((rank.step for rank in ranks), default=-1), state.current.number if state.current else -1
        index = None if number < 0 else _quietly(folder.read, bodies.IndexBody, number=number)
        return JobStatus(
            job_id=plain_text(folder.job_id),
            user=owner_of(folder),
            off=off,
            off_about=switch.about(folder.job_id) if folder.job_id in switched.names else "",
            state=state.word,
            problem=next(iter(state.unreadable), ""),
            loads=loads,
            **{name: getattr(state, name) for name in ("job", "claim", "current", "model", "end")},
            end_text=state.text if state.end is not None else "",
            term=term_text(index, step) if index is not None else "",
            ranks=ranks,
            ranks_registered=len(folder.numbers(bodies.RanksBody)),
            held_ranks=[rank.rank for rank in ranks if rank.held],
            step=step,
            iter_time_s=max((rank.iter_time for rank in ranks if rank.iter_time is not None), default=None),
            iter_energy_j=iter_energy_j,
            energy_j=(loads and loads.energy_j) or state.energy_j or (iter_energy_j and iter_energy_j * (step + 1)),
            clocks_mhz=sorted({rank.clock_mhz for rank in ranks if rank.clock_mhz and not rank.held}),
            clock_backends=dict(sorted(ways.items())),
            undo_owed=sum(rank.undo_owed for rank in ranks),
            undo_failures=sum(rank.undo_failures for rank in ranks),
            last_error=next((r.error for r in sorted(ranks, key=lambda rank: not rank.undo_owed) if r.error), ""),
            verdict=verdict_of(state),
        )
    except (RecordError, StoreError) as error:
        return JobStatus(job_id=folder.job_id, off=off, problem=str(error.args[-1]))


_HEADS = ["state", "saved", "slower", "clocks now", "energy so far", "job"]
"""The job is the last column, since its name is long: where a screen is too narrow, it goes on in the next line."""


def render(state: DirectoryStatus, verbose: bool = False) -> Group:
    """Returns the screen; `verbose`: with the details of each job."""
    daemon = state.daemon
    line = Text.assemble((state.shared_dir, "bold"), "   daemon: ")
    if daemon is None:
        line.append("none runs here", style="yellow")
    elif daemon.alive:
        line.append(f"{daemon.host}:{daemon.pid}", style="green")
        line.append(f", generation {daemon.generation}, {daemon.scheduler}, pfo-fs {daemon.version}")
    elif daemon.stopped:
        line.append(f"stopped (was {daemon.host}:{daemon.pid}); schedules stay as they are", style="yellow")
    else:
        line.append(f"silent (was {daemon.host}:{daemon.pid})", style="bold red")
    if state.archived_jobs:
        line.append(f"   {state.archived_jobs} archived", style="dim")
    if state.site_problem:
        line.append(f"\n{state.site_problem}; its rules are not in force", style="bold yellow")
    if state.off_about is not None:
        line.append("\nall jobs are switched off", style="bold yellow")
        line.append(f" ({state.off_about or 'off/all is there'}); `pfo-fs on --all` ends that", style="yellow")
    rest = [] if state.jobs else ["no jobs"]
    rest += [f"{count:,} folders without job.json" for count in [state.folders_without_job] if count]
    rest += [f"{count:,} more jobs, older or over" for count in [state.jobs_not_shown] if count]
    rows = [_HEADS, *map(_row, state.jobs)]
    widths = [max(map(len, column)) + 2 for column in zip(*rows, strict=True)][:-1]
    rows = [[*map(str.ljust, row, widths), row[-1]] for row in rows]
    parts = [Text("".join(rows[0]), style="dim")] if state.jobs else []
    for job, row in zip(state.jobs, rows[1:], strict=True):
        red = "bold red" * ((job.verdict.slower or 0.0) > MUCH_SLOWER)
        styles = [_STATE_STYLE.get(job.state, ""), "", red, "", "", "bold"]
        parts += [Text.assemble(*zip(row, styles, strict=True)), *_about(job, verbose)]
    return Group(line, *parts, *([Text("; ".join(rest), style="dim")] if rest else []))


def _row(job: JobStatus) -> list[str]:
    """The cells of a job in the table."""
    over, clocks = job.state == "ended", job.clocks_mhz
    now = f"{clocks[0]:,}" if len(clocks) == 1 else f"{clocks[0]:,}–{clocks[-1]:,}" if clocks else ""
    died = bodies.CLOCK_PROCESS_DIED in job.clock_backends
    unset = "unknown" if died else "not set" if set(job.clock_backends) == {"none"} else "default"
    now = f"{now} MHz" if now else unset
    return [
        job.end_text or ("off" if job.off else job.state),
        *(["–", "–"] if job.off and not over else [job.verdict.saved_text, job.verdict.slower_text]),
        "–" if over or not job.ranks else now,
        f"~{energy_text(job.energy_j)}" if job.energy_j else "–",
        job.job_id,
    ]


def _about(job: JobStatus, verbose: bool) -> list[Text]:
    """Returns lines with what a person should know of a job; with all that is known, if `verbose`."""
    lines, current = [], job.current
    if job.end is None and job.off:
        lines.append(Text(f"  switched off: {'; '.join(filter(None, (job.held_text, job.off_about)))}", "bold yellow"))
    elif job.end is None and job.verdict.harm:
        lines.append(Text(f"  {job.verdict.harm}", style="bold red"))
    details = [text for text in _details(job) if text] if verbose else []
    lines += [Text(f"  {text}", style="cyan") for text in details]
    if job.undo_owed:
        text = f"{job.undo_owed} GPU setting(s) could not be put back yet ({job.undo_failures} attempts failed)"
        lines.append(Text(f"  {text}", style="bold red"))
    refused = f"schedule.yaml refused: {current.yaml_problem}" if current is not None and current.yaml_problem else ""
    said = (job.end and job.end.message) or (current.message if current is not None else "")
    target = current.status_text.split("; ")[0] if current is not None and job.end is None else ""
    loads = job.loads.problem if job.loads is not None else ""
    error = "" if loads and loads in job.last_error else job.last_error  # a rank repeats what is wrong with loads
    texts = dict.fromkeys(filter(None, (job.problem, said, refused, error, loads, target * (IMPOSSIBLE in target))))
    texts.pop(job.end.reason if job.end is not None else "", None)
    style = "red" if job.state == "broken" else "yellow"
    lines += [Text(f"  {text}", style=style) for text in texts if not any(text in detail for detail in details)]
    return lines


def _details(job: JobStatus) -> Iterator[str]:
    """Who schedules a job, what runs, and the texts of the scheduler and of the clock processes."""
    current, ways, runs = job.current, job.clock_backends, "no schedule"
    who: str = job.claim.kind if job.claim is not None else "no process"
    if job.job is not None and job.job.coordination == "none":
        runs = f"sets a {job.job.scheduler.replace('_', ' ')}"
    if current is not None and current.number >= 0:
        runs = f"schedule {current.number} ({current.source.kind if current.source else '?'})"
    size = job.job.job_info.world_size if job.job is not None else "?"
    step = f", step {job.step}" if job.step >= 0 else ""
    yield f"user {job.user}, scheduled by: {who}, {job.ranks_registered}/{size} ranks, {runs}{step}"
    by_policy = current is not None and (current.source is None or current.source.kind == "scheduler")
    yield current.status_text if current is not None and by_policy and job.end is None else ""
    yield job.loads.text if job.loads is not None else ""
    if job.end is None:
        yield f"schedule {current.number}: {job.term}" if current is not None and job.term else ""
        counts = (f"{way} ({counted(n, 'rank')})" if len(ways) > 1 else way for way, n in ways.items())
        yield f"clocks set through: {', '.join(counts)}" if ways else ""
        yield switching_text(job.ranks)
