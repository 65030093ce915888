"""Records that wait to be written to the shared directory, one at a time; a failed write is tried again."""

from __future__ import annotations

from collections import deque

from pfo_fs.errors import AlreadyClaimed, NotShared, PfoError, StoreError
from pfo_fs.helper.operations import Write

MAX_WAITING = 1000
_SECONDS_TO_NEXT_TRY = 1.0


class WriteQueue:
    """The records that wait.

    Attributes:
        dropped: Number of records dropped because too many waited; their measurements are made again.
    """

    def __init__(self) -> None:
        self.dropped = 0
        self._waiting: deque[Write] = deque()
        self._in_flight: Write | None = None
        self._not_before_s = 0.0

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits and nothing is being written."""
        return not self._waiting and self._in_flight is None

    def holds(self, kind: type[Write]) -> bool:
        """Whether a record of this kind waits or is being written."""
        return any(isinstance(write, kind) for write in (*self._waiting, self._in_flight))

    def add(self, write: Write) -> None:
        """Adds a record; the queue drops it when `MAX_WAITING` wait already."""
        if len(self._waiting) >= MAX_WAITING:
            self.dropped += 1
        else:
            self._waiting.append(write)

    def next(self, now_s: float) -> Write | None:
        """Returns the record to write now; None while one is being written, or in the pause after an error."""
        if self._in_flight is not None or not self._waiting or now_s < self._not_before_s:
            return None
        self._in_flight = self._waiting.popleft()
        return self._in_flight

    def done(self, error: PfoError | None, now_s: float, *, again: bool = True) -> bool:
        """Notes that the worker has finished; returns whether the record will be tried again.

        A new try does not help if another process owns the name, the record is not valid, or the directory is another
        one than that of rank 0.

        Args:
            error: The error, if there was one.
            now_s: Monotonic time.
            again: Whether this record may be tried again.
        """
        write, self._in_flight = self._in_flight, None
        if error is None:
            self._not_before_s = 0.0
            return False
        if (
            write is None
            or not again
            or not isinstance(error, StoreError)
            or isinstance(error, (AlreadyClaimed, NotShared))
        ):
            return False
        self._waiting.appendleft(write)
        self._not_before_s = now_s + _SECONDS_TO_NEXT_TRY
        return True

    def due_s(self) -> float | None:
        """Returns when the next record can be written; None while none waits or one is being written."""
        return self._not_before_s if self._waiting and self._in_flight is None else None
