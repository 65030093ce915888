"""Keeps track of `jobs/`: finds new jobs and claims them at once, archives those that have ended.

A folder in `jobs/` may also be empty or foreign, and there may be thousands of them. So a poll takes a limited time,
folders that were never read come first, and a folder without a job is read ever more rarely.
"""

import heapq
import logging
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from pfo_fs.coordination.coordinator import Coordinator, LogOnce
from pfo_fs.errors import RecordError, StoreError, StoreUnavailable
from pfo_fs.store import SharedDirectory, layout

log = logging.getLogger(__name__)

LIST_EVERY_S = 1.0
COMPARE_EVERY_S = 10.0
"""Seconds between two checks for removed folders."""
LOOK_TAKES_S = 0.1
"""A poll reads folders until about this time, in s, and archives until twice this time; the next poll goes on."""
_CLOCK_HOLDS_S = 60.0
"""The file system's clock is read (by one new file) once in this time, in s; meanwhile, this host's clock counts on."""
_FIRST_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 600.0


@dataclass
class Found:
    """The result of a poll: new jobs, claimed where that is allowed, and jobs whose folders are gone."""

    jobs: list[Coordinator] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)
    again_in_s: float = LIST_EVERY_S


@dataclass
class JobFolders:
    """All folders in `jobs/`; archives ended jobs after `archive_after_s`. Any thread may call `over` or `silent_s`."""

    shared: SharedDirectory
    make: Callable[[str], Coordinator]
    archive_after_s: float
    monotonic: Callable[[], float]

    def __post_init__(self) -> None:
        self._log = LogOnce(log, self.monotonic)
        self._known: set[str] = set()
        self._looks: dict[str, int] = {}  # how often each folder without a job, or with a damaged one, was read
        self._due: list[tuple[float, str]] = []  # a heap
        self._to_archive: list[tuple[float, str]] = []  # a heap
        self._over: deque[tuple[float, str]] = deque()
        self._listed = self._compared = -math.inf
        self._missing_before: set[str] = set()
        self._clock = -math.inf, 0.0  # the file system's clock: when it was read (monotonic s), and its time

    def over(self, job_id: str, archive_at: float) -> None:
        """Notes that a job has ended, to be archived at `archive_at` (monotonic s)."""
        self._over.append((archive_at, job_id))

    def poll(self, *, list_now: bool = False) -> Found:
        """Lists new folders, reads those that are due, archives ended jobs; takes a limited time."""
        found = Found()
        now = began = self.monotonic()
        if list_now or now - self._listed >= LIST_EVERY_S:
            self._list(now, found)
            self._listed = now
        while self._due and self._due[0][0] <= now and now - began < LOOK_TAKES_S:
            _, name = heapq.heappop(self._due)
            if name in self._looks:
                self._examine(name, now, found)
            now = self.monotonic()
        self._archive(now, began)
        next_due = min(self._due[0][0] if self._due else math.inf, self._listed + LIST_EVERY_S)
        found.again_in_s = max(0.01, next_due - now)
        return found

    def _list(self, now: float, found: Found) -> None:
        if now - self._compared < COMPARE_EVERY_S:
            names = self.shared.job_ids(known=self._known)
        else:
            self._compared = now
            names = self.shared.job_ids()
            missing = self._known.difference(names)
            # One listing may be stale: a folder counts as removed if two listings lack it.
            for name in missing & self._missing_before:
                self._known.discard(name)
                if self._looks.pop(name, None) is None:
                    found.gone.append(name)
            self._missing_before = missing
            names = [name for name in names if name not in self._known]
        for name in names:
            self._known.add(name)
            self._looks[name] = 0
            heapq.heappush(self._due, (-math.inf, name))  # before all that were read already

    def _examine(self, name: str, now: float, found: Found) -> None:
        """Reads one folder that held no job so far."""
        problem = ""
        try:
            owner = self.shared.files.foreign_owner(layout.job(name))
            if owner is not None:
                del self._looks[name]
                self._log.log(logging.INFO, f"job {name}: belongs to user {owner}, whose jobs are not served")
                return
            names = self.shared.job(name).names()
            if layout.END in names:
                age_s = self._now_s() - self.shared.files.changed_s(f"{layout.job(name)}/{layout.END}")
                del self._looks[name]  # only now: if a call fails, the folder is looked at again
                left_s = self.archive_after_s - max(0.0, age_s)
                heapq.heappush(self._to_archive, (now + left_s, name))
                return
            # `job.json` is read once it is listed: an NFS client remembers for half a minute that a name was missing.
            if layout.JOB in names:
                coordinator = self.make(name)
                if coordinator.claim(names):
                    del self._looks[name]
                    found.jobs.append(coordinator)
                    return
        except StoreUnavailable as error:
            problem = f"the shared directory does not answer: {error.args[-1]}"
        except (StoreError, RecordError) as error:
            problem = str(error.args[-1])
        except Exception as error:  # noqa: BLE001  one folder must not prevent reading the others
            problem = f"{type(error).__name__}: {error}"
        if problem:
            self._log.log(logging.WARNING, f"job {name}: {problem}")
        pause_s = min(_FIRST_PAUSE_S * 2.0 ** min(self._looks[name], 30), _LONGEST_PAUSE_S)
        self._looks[name] += 1
        heapq.heappush(self._due, (now + pause_s, name))

    def silent_s(self, job_id: str) -> float:
        """Returns for how many seconds the processes of a job have written nothing."""
        return self._now_s() - self.shared.job(job_id).last_sign_s()

    def _now_s(self) -> float:
        """Returns the time of the file system's clock. All ages are told by it, because daemons come and go."""
        read_at, now_s = self._clock
        if self.monotonic() - read_at >= _CLOCK_HOLDS_S:
            self._clock = read_at, now_s = self.monotonic(), self.shared.files.now_s("")
        return now_s + self.monotonic() - read_at

    def _archive(self, now: float, began: float) -> None:
        while self._over:
            heapq.heappush(self._to_archive, self._over.popleft())
        while self._to_archive and self._to_archive[0][0] <= now and self.monotonic() - began < 2 * LOOK_TAKES_S:
            _, job_id = heapq.heappop(self._to_archive)
            try:
                self.shared.archive(job_id)
                self._known.discard(job_id)
            except StoreError as error:
                self._log.log(logging.WARNING, f"job {job_id}: cannot be archived: {error.args[-1]}")
                heapq.heappush(self._to_archive, (now + _LONGEST_PAUSE_S, job_id))
