"""How far a job is, and how fast its hosts follow: the pace at which they poll, steps, and times of iterations.

A file server serves all jobs of a site. So the polls of a job must not grow with the number of its hosts, and must be
few while nothing happens. The coordinator writes the pace into `current.json`; hosts poll no more often than that,
unless PFO_FS_POLL_INTERVAL is set for them.
"""

import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pfo_fs.errors import RecordError
from pfo_fs.models import RankInfo
from pfo_fs.scheduler import IterationTime
from pfo_fs.store import JobFolder, bodies

_HOST_RANKS = 8
"""Hosts have about eight GPUs: the number of hosts follows from that of the ranks."""
_POLLS_PER_S = {"local": 1000.0, "remote": 250.0}
"""All hosts of a job together poll at most about this often."""
_MOST_LOCAL_RANKS = 64
"""A job with more ranks has several hosts: its directory is shared, whatever the file system's type says."""
CALM_AFTER_S = 60.0
"""A job is calm after this time without a new schedule or an edit of `schedule.yaml`."""
_CALM_POLL_S = 10.0
"""Seconds between two polls of a calm job's `current.json` by each of its hosts, and of its folder by a daemon."""
_CALM_LOCAL_POLL_S = 2.0
"""Seconds between a daemon's polls of a calm job that runs on this host, with its directory on this host's disk."""
_LONGEST_POLL_S = 60.0
"""However large a job is, a change reaches it within about 90 s: `_LATEST` times this interval."""
_LATEST = 1.5
"""The time between two polls is at most this multiple of the interval, because hosts vary their pauses."""
_LEAD_PER_POLL = _LATEST + 1.0
"""Lead as a multiple of the interval at which hosts choose to poll; the 1.0 is for writing, reading, a second try."""


class PollPace:
    """The pace of one job.

    Args:
        lead_s: Hosts that poll as often as they like surely have a new schedule within this time.
        remote: Whether the directory is on a file system of another host.
        adapts: Whether the pace may change; False where a user has set the interval, or nothing is polled.

    Attributes:
        poll_s: Hosts poll at most once in this time, in s; 0.0: as often as they like.
    """

    def __init__(self, lead_s: float, *, remote: bool, adapts: bool, now: float) -> None:
        self.poll_s = 0.0
        self._lead_s = lead_s
        self._remote = remote
        self._adapts = adapts
        self._changed_at = now
        self._is_shared = remote
        self._slower_s, self._slower_until = 0.0, -math.inf  # the longest interval that hosts may still follow

    def is_calm(self, now: float) -> bool:
        """Returns whether nothing has happened for long."""
        return self._adapts and now - self._changed_at >= CALM_AFTER_S

    @property
    def calm_pause_s(self) -> float:
        """How long the coordinator may wait between two polls of the job while it is calm, in s."""
        return _CALM_POLL_S if self._is_shared else _CALM_LOCAL_POLL_S

    def changed(self, now: float) -> None:
        """Notes that something has happened to the job: other changes may follow soon."""
        self._changed_at = now

    def took_over(self, now: float, poll_s: float) -> None:
        """Notes the interval that an earlier coordinator has set: hosts keep it until they poll again."""
        self._slower_s, self._slower_until = poll_s, now + _LATEST * poll_s

    def hosts_poll(self, poll_s: float) -> None:
        """Notes the interval at which hosts poll as they like: their mount may differ from the coordinator's."""
        self._lead_s = max(self._lead_s, _LEAD_PER_POLL * poll_s)

    def update(self, now: float, world_size: int) -> None:
        """Chooses the interval of the next polls."""
        if not self._adapts:
            return
        self._is_shared = self._remote or world_size > _MOST_LOCAL_RANKS
        polls_s = world_size / _HOST_RANKS / _POLLS_PER_S["remote" if self._remote else "local"]
        poll_s = min(round(polls_s, 1), _LONGEST_POLL_S) if polls_s >= 1 else 0.0
        if self.is_calm(now) and self._is_shared:
            poll_s = max(poll_s, _CALM_POLL_S)
        if poll_s < self.poll_s:
            self._slower_s, self._slower_until = self.poll_s, now + _LATEST * self.poll_s
        self.poll_s = poll_s

    def lead_s(self, now: float) -> float:
        """Returns the time within which all hosts surely have a schedule that is written now."""
        poll_s = max(self.poll_s, self._slower_s if now < self._slower_until else 0.0)
        return self._lead_s + _LATEST * poll_s


_READ_EVERY_S = 1.0
_MAY_BE_OLD_S = 8.0
"""A record that was there at the first reading counts if no newer one comes for this time, in s: training pauses."""


class Progress:
    """The steps of one job.

    Attributes:
        step: The newest step known; -1 for none.
        number: The number of the schedule that ranks on rank 0's host follow at `step`.
        iteration_s: How long an iteration takes, in s; 0.0 while that is not known.
    """

    def __init__(self, folder: JobFolder, pace: PollPace, now: float) -> None:
        self.step = self.number = -1
        self.iteration_s = 0.0
        self._folder = folder
        self._pace = pace
        self._since = self._first_seen = now
        self._read = -math.inf
        self._first_step = -1  # the step in the record that was there at the first reading

    @property
    def is_awaited(self) -> bool:
        """Whether there is a record of progress, but it may be old, so that the step is not known yet."""
        return self.step < 0 <= self._first_step

    def poll(self, now: float) -> bool:
        """Reads the progress, at most once a second (`local`: each time); returns whether the step has changed."""
        if now - self._read < min(_READ_EVERY_S, self._pace.lead_s(now)):
            return False
        is_first, not_yet_there = math.isinf(self._read), max(self._read, self._first_seen)
        self._read = now
        # By listing: an NFS client remembers for half a minute that a name was not there.
        if self.step < 0 and 0 not in self._folder.numbers(bodies.ProgressBody):
            return False
        body = self._folder.read(bodies.ProgressBody, name=0)
        # All ranks are at the same step; the entry of a rank whose clock process has died no longer changes.
        mine = max(body.ranks, key=lambda rank: rank.step, default=None) if body else None
        if mine is None or mine.step < 0:
            return False
        self.number = mine.number
        if mine.step == self.step:
            return False
        if is_first:
            self._first_step = mine.step  # this coordinator cannot know how old the record is
        if mine.step == self._first_step and now - self._first_seen < _MAY_BE_OLD_S:
            return False
        # The record was written between the last reading and this one.
        self.step, self._since = mine.step, not_yet_there - mine.step_age_s
        self.iteration_s = max(0.0, mine.iter_time or 0.0)
        return True

    def start_step(self, now: float) -> int:
        """Returns the first step of a schedule written now: far enough ahead for every rank to receive it before."""
        if self.step < 0:
            return 0
        if not self.iteration_s:
            return self.step + 2
        return self.step + 1 + math.ceil((now - self._since + self._pace.lead_s(now)) / self.iteration_s)


log = logging.getLogger(__name__)

_LIST_EVERY_S = 10.0
_PAUSE_PER_READING = 20
"""After a reading that took t seconds there is a pause of at least 20 t: reading takes 5 % of the time at most."""


@dataclass
class IterationTimeReader:
    """Reads what is new in one job's `iteration_times/`."""

    folder: JobFolder
    monotonic: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._names: list[int] = []
        self._listed = -math.inf
        self._not_before = -math.inf
        self._seen: dict[int, int] = {}

    def read(self, now: float, ranks: Mapping[int, RankInfo], iteration_s: float) -> list[IterationTime]:
        """Returns iterations that were not returned before, in the order of their steps.

        Reading much more often than once per iteration (`iteration_s`; 0.0: not known) is useless.
        """
        if now < self._not_before:
            return []
        began = self.monotonic()
        if now - self._listed >= _LIST_EVERY_S:
            self._listed = now
            self._names = self.folder.numbers(bodies.IterationTimesBody)
        throttled: dict[int, str] = {}
        found: list[IterationTime] = []
        for rank in self._names:
            try:
                body = self.folder.read(bodies.IterationTimesBody, rank=rank)
            except RecordError as error:
                log.debug("the iteration times of rank %d cannot be read: %s", rank, error)
                continue
            info = ranks.get(rank)
            if body is None or info is None:
                continue
            if body.throttled:
                throttled[info.dp_rank] = f"rank {rank}: {body.throttled}"
            if info.pp_rank or info.tp_rank:
                continue  # of these ranks, only `throttled` is used
            fresh = [entry for entry in body.steps if entry[0] > self._seen.get(rank, -1)]
            found += [IterationTime(info.dp_rank, *entry) for entry in fresh]
            if fresh:
                self._seen[rank] = fresh[-1][0]
        self._not_before = now + max(_PAUSE_PER_READING * (self.monotonic() - began), min(1.0, iteration_s / 4))
        found.sort(key=lambda iteration: (iteration.step, iteration.pipeline))
        return [iteration._replace(throttled=throttled.get(iteration.pipeline, "")) for iteration in found]
