"""The progress of this host's ranks: collected from training and clock processes, written from time to time."""

import math
from collections.abc import Sequence
from typing import Any

from pfo_fs.helper.job import Around
from pfo_fs.ipc.messages import ProgressReport, TimedStep
from pfo_fs.models import RankInfo
from pfo_fs.store import bodies

_MAX_ERROR_CHARS = 4000
_SLOWER_ELSEWHERE = 5.0
"""A second lies between two records of a host; on a network file system, this many seconds."""
_SLOWER_WITHOUT_RANK_0 = 12.0
"""On hosts without rank 0, records are this many times rarer: only users read them, and the coordinator does not."""
_MEASURED = ("step", "number", "iter_time", "iter_energy", "energy_j", "clock_mhz")
_AS_REPORTED = (*_MEASURED, "overruled", "undo_owed", "undo_failures")
"""Fields of a rank's record that are copied from a clock process's report."""
_KEPT = 16
_CHANGED = 0.01
"""If an iteration differs from the last written one by more than this share, it waits only the shortest interval."""
_QUIET = 15
"""While nothing changes, iteration times are written after this many times the shortest interval."""
_CONFIRMATIONS = 3
"""This many records follow a change, as soon as there are new iterations: the coordinator waits for a confirmation."""


class RankBoard:
    """The ranks of one host.

    Attributes:
        name: The name of this host's progress record: 0 if rank 0 is here, else the rank that joined first; None
            before that.
    """

    def __init__(self, around: Around) -> None:
        self.name: int | None = None
        self.infos: dict[int, RankInfo] = {}
        self._around = around
        self._progress: dict[int, bodies.RankProgress] = {}
        self._from_clocks: dict[int, str] = {}  # the last problem that a clock process has reported
        self._held: dict[int, dict[str, bool]] = {}  # by rank and GPU: whether the GPU is held
        self._moved_at_s: dict[int, float] = {}
        self._changed = self._is_final = False
        self._next_s = 0.0
        self._iteration_times: dict[int, IterationTimeLog] = {}

    def join(self, info: RankInfo, name: int | None, clock_backend: str = "") -> int:
        """Adds a rank; returns the name of this host's progress record."""
        self.infos[info.rank] = info
        known = self._progress.get(info.rank, bodies.RankProgress(rank=info.rank))
        self._progress[info.rank] = known.model_copy(update={"clock_backend": clock_backend})
        if name is not None and name >= 0:
            self.name = name
        elif info.rank == 0 or self.name is None:
            self.name = info.rank
        return self.name if self.name is not None else info.rank

    def note_problem(self, rank: int, text: str) -> None:
        self._update(rank, error=text[:_MAX_ERROR_CHARS])

    def note_reset(self, rank: int, text: str, *, owed: bool, failed: bool) -> None:
        """Notes whether a rank's GPU is still to be reset, where its clock process cannot report that any more."""
        failures = self._progress.get(rank, bodies.RankProgress(rank=rank)).undo_failures + failed
        self._update(rank, error=text[:_MAX_ERROR_CHARS], undo_owed=int(owed), undo_failures=failures)
        self._next_s = 0.0

    def note_death(self, rank: int) -> None:
        """Notes that a clock process has died: what it has reported of its GPU's clock no longer holds."""
        self._update(rank, clock_backend=bodies.CLOCK_PROCESS_DIED, clock_mhz=None)

    def note_loads(self, rank: int, known: dict[str, Any]) -> None:
        """Notes what is known of clocks from loads."""
        self._update(rank, loads=known)

    def note_report(self, rank: int, report: ProgressReport, gpu: str = "") -> None:
        """Notes a clock process's report of its rank's progress, for one of the rank's GPUs."""
        fields: dict[str, Any] = {name: getattr(report, name) for name in _AS_REPORTED}
        held = self._held.setdefault(rank, {})
        held[gpu] = report.held
        fields["held"] = all(held.values())
        if rank in self._progress and self._progress[rank].held != fields["held"]:
            self._next_s = 0.0  # `pfo-fs off --wait` waits for this
        if report.switching is not None:
            fields["switching"] = report.switching
        if report.message:
            fields["error"] = self._from_clocks[rank] = report.message[:_MAX_ERROR_CHARS]
        elif rank in self._from_clocks and self._progress[rank].error == self._from_clocks.pop(rank):
            fields["error"] = ""  # the problem that the clock process reported has passed
        self._moved_at_s[rank] = self._around.now()
        self._update(rank, **fields)

    def iteration_times(self, rank: int, report: ProgressReport) -> bodies.IterationTimesBody | None:
        """Returns the record of iteration times to write now, if one is due.

        The record of a pipeline's first rank has iteration times; that of another rank has only `throttled`.
        """
        info = self.infos.get(rank)
        if info is None:
            return None
        log = self._iteration_times.setdefault(rank, IterationTimeLog(self._slower()))
        is_first = info.pp_rank == 0 and info.tp_rank == 0
        log.add(report.iteration_times if is_first else [], report.throttled[:200])
        if not log.take(self._around.now()):
            return None
        return bodies.IterationTimesBody(rank=rank, steps=log.steps, throttled=log.throttled)

    def record(self, store_error: str, *, last: bool = False) -> bodies.ProgressBody | None:
        """Returns the progress record to write now, if one is due or this is the `last` chance."""
        now_s = self._around.now()
        due = self._changed and now_s >= self._next_s
        if self.name is None or not self._progress or not (due or (last and not self._is_final)):
            return None
        self._is_final = last
        interval_s = self._slower() * (1 if self.name == 0 else _SLOWER_WITHOUT_RANK_0)
        self._next_s = now_s + interval_s * self._around.jitter.uniform(0.9, 1.1)
        self._changed = False
        ranks = [
            progress.model_copy(update={"step_age_s": max(0.0, now_s - self._moved_at_s.get(rank, now_s))})
            for rank, progress in sorted(self._progress.items())
        ]
        return bodies.ProgressBody(name=self.name, ranks=ranks, store_error=store_error[:_MAX_ERROR_CHARS])

    def _slower(self) -> float:
        return 1.0 if self._around.local_mount else _SLOWER_ELSEWHERE

    def not_written(self, write: bodies.ProgressBody | bodies.IterationTimesBody) -> None:
        """Notes that a record could not be written: the next one is due sooner."""
        if isinstance(write, bodies.ProgressBody):
            self._changed = True
        elif write.rank in self._iteration_times:
            self._iteration_times[write.rank].not_written()

    def due_s(self) -> float | None:
        """Returns when a record may be written next; None while nothing has changed."""
        return self._next_s if self._changed and self.name is not None else None

    def _update(self, rank: int, **fields: Any) -> None:
        known = self._progress.get(rank, bodies.RankProgress(rank=rank))
        self._progress[rank] = bodies.RankProgress.model_validate({**known.model_dump(), **fields})
        self._changed = True


class IterationTimeLog:
    """Decides when to write the iteration times of a pipeline: at once when they change, otherwise rarely."""

    def __init__(self, interval_s: float) -> None:
        self.steps: list[TimedStep] = []
        self.throttled = ""
        self._interval_s = interval_s
        self._written_at = -math.inf
        self._written: tuple[int, float, str] | None = None
        self._confirmations = 0

    def add(self, steps: Sequence[TimedStep], throttled: str) -> None:
        """Adds iterations that have ended since the last call."""
        self.steps = [*self.steps, *steps][-_KEPT:]
        self.throttled = throttled

    def take(self, now: float) -> bool:
        """Returns whether to write a record at `now` (monotonic s): on a change, or long after the last; notes that."""
        since_s, before = now - self._written_at, self._written
        _, number, span_s = self.steps[-1] if self.steps else (0, -1, 0.0)
        if since_s < self._interval_s or (not self.steps and self.throttled == (before[2] if before else "")):
            return False
        has_changed = before is None or self.throttled != before[2]
        if before is not None and self.steps:
            has_changed |= number != before[0] or abs(span_s - before[1]) > _CHANGED * before[1]
        if not (has_changed or self._confirmations > 0 or since_s >= _QUIET * self._interval_s):
            return False
        self._confirmations = _CONFIRMATIONS if has_changed and before else max(0, self._confirmations - 1)
        self._written_at, self._written = now, (number, span_s, self.throttled)
        return True

    def not_written(self) -> None:
        """Notes that a record could not be written: the next one is due after the shortest interval."""
        self._written = (-1, 0.0, "not known")
