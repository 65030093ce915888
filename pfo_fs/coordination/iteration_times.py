"""Reads how long iterations take, as the first rank of each pipeline reports it."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pfo_fs.errors import RecordError
from pfo_fs.models import RankInfo
from pfo_fs.scheduler import IterationTime
from pfo_fs.store import JobFolder, bodies

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

        Args:
            now: Monotonic time, in s.
            iteration_s: How long an iteration takes, in s, or 0.0 if unknown: reading much more often is useless.
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
        found.sort(key=lambda iteration_times: (iteration_times.step, iteration_times.pipeline))
        return [
            iteration_times._replace(throttled=throttled.get(iteration_times.pipeline, "")) for iteration_times in found
        ]
