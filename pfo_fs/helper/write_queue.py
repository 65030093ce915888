"""Records that wait to be written to the shared directory, one at a time; a failed write is tried again.

Ranks of a host join, and measure the same iterations, at about the same time: their records wait for each other for a
moment, so that they are written to one file.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from msgspec.structs import replace

from pfo_fs.errors import AlreadyClaimed, NotShared, PfoError, StoreError
from pfo_fs.helper.job import Around
from pfo_fs.helper.operations import RegisterRanks, Write, WriteResults
from pfo_fs.store.bodies import MOST_NAMES_PER_FILE, EndBody

MAX_WAITING = 1000
_SECONDS_TO_NEXT_TRY = 1.0
_GATHERED_FOR_S: dict[type[Write], float] = {RegisterRanks: 0.1, WriteResults: 0.25}
"""A record waits this many seconds for those of the host's other ranks; records that come later are written later."""


@dataclass
class _Waiting:
    """A record, and when it is written although other ranks' records are missing; 0: it waits for none."""

    write: Write
    until_s: float = 0.0


class WriteQueue:
    """The records that wait; when `MAX_WAITING` wait, what comes is dropped, unless ranks join or the job ends."""

    def __init__(self, around: Around) -> None:
        self._around = around
        self._waiting: deque[_Waiting] = deque()
        self._in_flight: Write | None = None
        self._not_before_s = 0.0

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits and nothing is being written."""
        return not self._waiting and self._in_flight is None

    def holds(self, kind: type[Write]) -> bool:
        """Whether a record of this kind waits or is being written."""
        return isinstance(self._in_flight, kind) or any(isinstance(waits.write, kind) for waits in self._waiting)

    def gathers(self, kind: type[Write]) -> bool:
        """Whether a record of this kind waits for those of other ranks."""
        return any(isinstance(waits.write, kind) and waits.until_s > 0 for waits in self._waiting)

    def add(self, write: Write) -> None:
        """Adds a record, or joins it to one that waits for it."""
        for waits in self._waiting:
            joined = _joined(waits.write, write) if waits.until_s > 0 else None
            if joined is not None:
                waits.write = joined
                return
        if len(self._waiting) >= MAX_WAITING and not isinstance(write, (RegisterRanks, EndBody)):
            return
        gathered_for_s = _GATHERED_FOR_S.get(type(write))
        self._waiting.append(_Waiting(write, 0.0 if gathered_for_s is None else self._around.now() + gathered_for_s))

    def next(self, is_complete: Callable[[Write], bool]) -> Write | None:
        """Returns the record to write now; None if none is due, one is being written, or an error calls for a pause."""
        now_s = self._around.now()
        if self._in_flight is not None or now_s < self._not_before_s:
            return None
        for place, waits in enumerate(self._waiting):
            if now_s >= waits.until_s or is_complete(waits.write):
                del self._waiting[place]
                self._in_flight = waits.write
                break
        return self._in_flight

    def done(self, error: PfoError | None, *, again: bool = True) -> bool:
        """Notes that the worker has finished; returns whether the record will be tried again.

        A new try does not help if another process owns the name, the record is not valid, or the directory is not that
        of rank 0.
        """
        write, self._in_flight = self._in_flight, None
        if error is None:
            self._not_before_s = 0.0
            return False
        lasts = not isinstance(error, StoreError) or isinstance(error, (AlreadyClaimed, NotShared))
        if write is None or not again or lasts:
            return False
        self._waiting.appendleft(_Waiting(write))
        self._not_before_s = self._around.now() + _SECONDS_TO_NEXT_TRY
        return True

    def due_s(self) -> float | None:
        """Returns when the next record can be written; None while none waits or one is being written."""
        if not self._waiting or self._in_flight is not None:
            return None
        return max(self._not_before_s, min(waits.until_s for waits in self._waiting))


def _joined(first: Write, second: Write) -> Write | None:
    """Returns one record in place of two; None if they cannot be written to one file."""
    if isinstance(first, RegisterRanks) and isinstance(second, RegisterRanks):
        ranks = [body.rank_info.rank for body in first.ranks + second.ranks]
        is_one_job = replace(first, ranks=()) == replace(second, ranks=())
        if is_one_job and len(set(ranks)) == len(ranks) <= MOST_NAMES_PER_FILE:
            return replace(first, ranks=first.ranks + second.ranks)
    if isinstance(first, WriteResults) and isinstance(second, WriteResults) and first.number == second.number:
        of_ranks = {body.result.rank: body for body in first.results + second.results}
        return replace(first, results=tuple(of_ranks.values()))
    return None
