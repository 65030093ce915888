"""The host helper's operations on the shared directory: each operation is data, and one class carries them out.

The helper's state decides which operations are needed and never blocks; they run in a worker thread, which may hang
with the file system.
"""

import errno
import os
import stat
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Literal, TypeAlias

import msgspec
from msgspec.structs import replace

from pfo_fs.coordination import read_site_policy
from pfo_fs.errors import NotShared, PfoError, RecordError, StoreError, StoreUnavailable
from pfo_fs.helper.power_limit_files import Asked, carry_out
from pfo_fs.ipc.messages import Message, NewSchedule, RankPlan, ReadProfile, SaveProfile
from pfo_fs.models import FrequencySchedule, RankInfo
from pfo_fs.store import Files, JobFolder, OffSwitch, Presence, SharedDirectory, bodies, is_local
from pfo_fs.turns import FOR_EVER, Term


class OpenDirectory(msgspec.Struct, frozen=True):
    """Find out whether every change in the directory is made by this host; result: bool."""


class CreateJob(msgspec.Struct, frozen=True):
    """Make the directory if it is not there, and the job's folder in it; choose which process schedules the job.

    Result: `CreatedJob`.
    """

    body: bodies.JobBody
    attempt: str


class CreatedJob(msgspec.Struct, frozen=True):
    """A new job, the id of its directory, whether it is switched off, and which process schedules the job.

    `coordination`: empty if that could not be found out. `warning`: text for the log about it; may be empty.
    """

    job_id: str
    directory_id: str
    off: bool = False
    coordination: Literal["daemon", "local", "none", ""] = "daemon"
    warning: str = ""


class PollSchedule(msgspec.Struct, frozen=True):
    """Read `current.json`, and the schedule that it names if that is newer; result: `ScheduleFound`."""

    known: tuple[int, int]
    rank_infos: tuple[RankInfo, ...]


class ScheduleFound(msgspec.Struct, frozen=True):
    """What `current.json` says, and the schedule for the ranks of this host if it is a new one.

    `is_complete`: whether the schedule that it names could be read, or was known already.
    """

    current: bodies.CurrentBody | None
    schedule: NewSchedule | None = None
    is_complete: bool = True


class ReadSwitch(msgspec.Struct, frozen=True):
    """Look whether pfo-fs was switched off here; `thorough`: also whether the job's folder is there.

    Without a job's folder, only the switch of all jobs counts. Result: `SwitchFound`.
    """

    thorough: bool = False


class SwitchFound(msgspec.Struct, frozen=True):
    """Whether this job is switched off, and what was removed: the directory, or the job's folder; empty: nothing."""

    off: bool = False
    gone: str = ""


class RegisterRanks(msgspec.Struct, frozen=True):
    """Use the job's folder, which rank 0 has made, and register ranks in it; result: `RanksRegistered`.

    `again`: whether the ranks have joined before, through an earlier helper: then the file system was mounted here.
    `polls_s`: seconds between two polls if the directory is on another host's file system, and if it is on this host's.
    """

    ranks: tuple[bodies.RankBody, ...]
    job_id: str
    attempt: str
    directory_id: str
    again: bool = False
    polls_s: tuple[float, float] = (0.0, 0.0)


class RanksRegistered(msgspec.Struct, frozen=True):
    """`taken`: for each rank that another process has registered before, a text that says which process."""

    taken: dict[int, str] = {}
    off: bool = False


class WriteResults(msgspec.Struct, frozen=True):
    number: int
    results: tuple[bodies.ResultBody, ...]


Question: TypeAlias = OpenDirectory | CreateJob | PollSchedule | ReadSwitch
Record: TypeAlias = bodies.OrderBody | bodies.ProgressBody | bodies.IterationTimesBody | bodies.EndBody
"""Records that are written as they are, each to its own file."""
Write: TypeAlias = RegisterRanks | Record | WriteResults | Asked
Operation: TypeAlias = Question | Write
Result: TypeAlias = "bool | CreatedJob | ScheduleFound | SwitchFound | RanksRegistered | list[Message] | None"

_SHORTEST_SILENCE_S, _LONGEST_SILENCE_S = 3.0, 5.0
"""A daemon counts as dead if its heartbeat does not change for three of its intervals, within these bounds.

The daemon writes the heartbeat once a second, and later than that on a busy machine.
"""
_BUSY_DAEMON_S = 5.0
"""If a running daemon has not claimed the job after this time, it will do so later, and the ranks do not wait."""


class DirectoryOperations:
    """Carries operations out, one after the other; every call may block for as long as the file system does.

    Args:
        writer: The name of this process in its records: `node17:4242`.
        default_scheduler: The policy that schedules the job if neither the job nor a daemon names one.
    """

    def __init__(self, root: str, writer: str, default_scheduler: str) -> None:
        self._root = root
        self._writer = writer
        self._default_scheduler = default_scheduler
        self._shared: SharedDirectory | None = None
        self._folder: JobFolder | None = None
        self._presence: Presence | None = None
        self._was_away = True
        self._replaced = ""  # why the directory here is not that in which the job began; empty: it is

    @property
    def shared(self) -> SharedDirectory:
        """The shared directory, which is not made here.

        Raises:
            StoreError: The directory cannot be used.
        """
        if self._shared is None:
            self._shared = SharedDirectory(Files(self._root), self._writer)
        return self._shared

    @property
    def folder(self) -> JobFolder:
        """The job's folder.

        Raises:
            StoreUnavailable: No job has been created or opened yet.
        """
        if self._folder is None:
            raise StoreUnavailable(errno.ENOENT, "no job has been created or joined yet")
        return self._folder

    def another_view(self) -> JobFolder:
        """Returns another object for the job's folder, for use in another thread."""
        folder = SharedDirectory(self.shared.files, self._writer).job(self.folder.job_id)
        folder.attempt = self.folder.attempt
        return folder

    def execute(self, operation: Operation) -> Result:
        """Carries one operation out.

        Raises:
            StoreError: The file system refuses, or gives no stable answer; or there is no job yet.
            RecordError: A file is not a valid record.
        """
        match operation:
            case OpenDirectory():
                return is_local(self._root)
            case CreateJob(body, attempt):
                return self._create(body, attempt)
            case PollSchedule(known, rank_infos):
                return self._look(known, rank_infos)
            case RegisterRanks():
                self._open(operation)
                poll_s = operation.polls_s[is_local(self._root)]
                ranks = [body.model_copy(update={"poll_s": poll_s}) for body in operation.ranks]
                return RanksRegistered(self.folder.register_ranks(ranks), self._is_off())
            case ReadSwitch(thorough):
                return self._read_switch(thorough=thorough)
            case WriteResults(number, results):
                self.folder.write_results(number, results)
            case bodies.OrderBody() | bodies.ProgressBody() | bodies.IterationTimesBody() | bodies.EndBody():
                self.folder.write(operation)
            case ReadProfile() | SaveProfile():
                return carry_out(operation)
        return None

    def _open(self, registration: RegisterRanks) -> None:
        """Uses the folder of a job that rank 0 has made, maybe on another host."""
        if self._folder is not None:
            return
        self._replaced = ""
        try:
            self._look_for_root()
            if registration.directory_id:
                self.shared.check_same(registration.directory_id, registration.job_id, registration.attempt)
        except NotShared as error:
            if not registration.again:
                raise
            # The directory was removed, and a daemon may have made another; or another file system lies there for now.
            self._replaced = str(error)
            raise StoreUnavailable(errno.ENOENT, self._replaced) from error
        folder = self.shared.job(registration.job_id)
        folder.attempt = registration.attempt
        self._folder = folder

    def _look_for_root(self) -> None:
        """Checks that the directory is there; an error that may pass, such as a lost connection, is no answer."""
        try:
            there = stat.S_ISDIR(os.stat(self._root).st_mode)
        except FileNotFoundError:
            there = False
        except OSError as error:
            raise StoreUnavailable(error.errno, f"{self._root}: {error.strerror}") from error
        if not there:
            raise NotShared(errno.ENOENT, f"{self._root} is not there on this host: is the file system mounted?")

    def _create(self, body: bodies.JobBody, attempt: str) -> CreatedJob:
        self._shared = SharedDirectory(Files(self._root, create=True), self._writer)
        scheduler = body.scheduler or self._scheduler_of_daemon(body.coordination)
        body.job_info.set_job_id(scheduler.rpartition(":")[2])
        self._folder = self.shared.create_job(body, attempt)
        created = CreatedJob(self._folder.job_id, self.shared.directory_id(), self._is_off())
        try:
            if body.coordination in ("daemon", "none"):
                return replace(created, coordination=body.coordination)
            site = read_site_policy(self.shared)
            if site.daemon_only:
                why = "site.yaml allows only a daemon to schedule; default clocks until a daemon claims this job"
                coordination: Literal["daemon", "local"] = "daemon"
            else:
                coordination, why = self._choose(auto=body.coordination == "auto")
        except PfoError as error:
            return replace(created, coordination="", warning=str(error))
        return replace(created, coordination=coordination, warning="; ".join(filter(None, (site.warning, why))))

    def _choose(self, *, auto: bool) -> tuple[Literal["daemon", "local"], str]:
        """Chooses which process schedules a new job: with `auto` a running daemon that claims it, else rank 0's helper.

        Returns:
            The choice, and a text for the log about it, which may be empty.
        """
        begun_s = moved_s = time.monotonic()
        before, moves = (-1, -1), -1
        while True:
            time.sleep(0.02 if is_local(self._root) else 0.1)
            try:
                daemon, why = self.shared.read(bodies.DaemonBody), ""
            except RecordError as error:
                daemon, why = None, f"{error}; rank 0 schedules this job itself unless that daemon does"
            # By listing: an NFS client remembers for half a minute that a name was not there.
            claimed = "coordinator.json" in self.folder.names()
            if not auto or claimed or daemon is None or daemon.stopped:
                return self._claim(), why if auto else ""
            now_s, heartbeat = time.monotonic(), (daemon.generation, daemon.counter)
            if heartbeat != before:
                before, moves, moved_s = heartbeat, moves + 1, now_s
            if now_s - moved_s > min(_LONGEST_SILENCE_S, max(_SHORTEST_SILENCE_S, 3 * daemon.interval_s)):
                return self._claim(), f"the daemon on {daemon.host} does not answer; rank 0 schedules this job itself"
            if moves > 0 and now_s - begun_s > _BUSY_DAEMON_S:
                return (
                    "daemon",
                    f"the daemon on {daemon.host} runs but is busy; default clocks until it claims this job",
                )

    def _claim(self) -> Literal["daemon", "local"]:
        """Claims the job for its rank 0; returns which kind of process has the claim, since another may be first."""
        mine = bodies.ClaimBody(kind="local", nonce=self.folder.attempt or "")
        return "daemon" if self.folder.claim_coordinator(mine).kind == "daemon" else "local"

    def _is_off(self) -> bool:
        """Whether this job starts switched off; if that cannot be read now, the first look at the switch tells."""
        try:
            return self._read_switch().off
        except StoreError:
            return False

    def _read_switch(self, *, thorough: bool = False) -> SwitchFound:
        files = self.shared.files
        if self._folder is None:
            return SwitchFound(OffSwitch(files).read().everything, self._replaced)
        job_id = self.folder.job_id
        if self._presence is None:
            self._presence = Presence(files)
        try:
            found = OffSwitch(files).read()
        except StoreError:
            gone = self._presence.why_gone(job_id)
            if gone:
                return SwitchFound(gone=gone)
            self._was_away = True
            raise
        if self._was_away:  # at the start, or an error has passed: the file system may have been mounted again
            with suppress(OSError):
                self._presence.remember()
                self._was_away = False
        gone = self._presence.why_gone(job_id) if thorough or not found.is_there else ""
        return SwitchFound(found.covers(job_id), gone)

    def _scheduler_of_daemon(self, coordination: str) -> str:
        """Returns the name of the policy that will probably schedule the job; it becomes part of the job's id."""
        if coordination != "local":
            try:
                daemon = self.shared.read_daemon()
            except PfoError:
                daemon = None
            if daemon is not None and not daemon.stopped:
                return daemon.scheduler
        return self._default_scheduler

    def _look(self, known: tuple[int, int], rank_infos: Sequence[RankInfo]) -> ScheduleFound:
        if known[1] < 0 and "current.json" not in self.folder.names():
            return ScheduleFound(None)
        current = self.folder.read(bodies.CurrentBody)
        if current is None or current.number in (-1, known[1]) or (current.generation, current.number) <= known:
            return ScheduleFound(current)
        index = self.folder.read(bodies.IndexBody, number=current.number)
        if index is None:
            return ScheduleFound(current, is_complete=False)  # the commit cannot be seen from here yet
        found = [self.folder.read_schedule(index, info) for info in rank_infos]
        schedules = [schedule for schedule in found if schedule is not None]
        return ScheduleFound(current, new_schedule(index.number, index.start_step, schedules, index.term))


def new_schedule(
    number: int, start_step: int, schedules: Sequence[FrequencySchedule], term: Term = FOR_EVER
) -> NewSchedule:
    """Returns the message to ranks about a new schedule, with each different plan once."""
    plans: list[RankPlan] = []
    places: dict[str, int] = {}
    shared: dict[tuple[int, int], int] = {}  # ranks of a stage share their lists, which are compared once
    ranks: dict[int, int] = {}
    for schedule in schedules:
        lists = id(schedule.frequencies), id(schedule.stages)
        if lists not in shared:
            key = schedule.model_dump_json(exclude={"rank"})
            if key not in places:
                places[key] = len(plans)
                plans.append(RankPlan(schedule.frequencies, schedule.stages))
            shared[lists] = places[key]
        ranks[schedule.rank] = shared[lists]
    return NewSchedule(
        number=number,
        start_step=start_step,
        until=term.until,
        after=term.after,
        turns=list(term.turns),
        by_hand=term.by_hand,
        plans=plans,
        ranks=ranks,
    )
