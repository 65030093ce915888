"""How long the own work of this rank takes in each step, on the device where that has events; nothing waits for it."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import Any, NamedTuple

log = logging.getLogger("pfo_fs")

_MOST_HELD = 16
"""So many steps wait for their events at most; then the oldest is dropped."""


class _Work(NamedTuple):
    """The work of one step: the host's times, and the device's events where there are some."""

    step: int
    began_s: float
    ended_s: float
    began: Any
    ended: Any


class WorkTimes:
    """Times the work of each step, from its begin to where this rank would wait for others.

    Args:
        make_event: Makes an event with timing of the device; None: the training thread's times are used.
    """

    def __init__(self, make_event: Callable[[], Any] | None) -> None:
        self._make_event = make_event
        self._pool: list[Any] = []
        self._open: tuple[int, float, Any] | None = None
        self._held: deque[_Work] = deque()

    def begin(self, step: int) -> None:
        """Begins a step; one that is still open is dropped."""
        self._open = step, monotonic(), self._record()

    def end(self) -> None:
        """Ends the work of the step that has begun; does nothing without one."""
        if self._open is None:
            return
        step, began_s, began = self._open
        self._open = None
        self._held.append(_Work(step, began_s, monotonic(), began, self._record() if began is not None else None))
        if len(self._held) > _MOST_HELD:
            self._held.popleft()

    def take(self) -> list[tuple[int, float]]:
        """Returns (step, time in s) of the steps whose events are ready since the last call."""
        found = []
        while self._held:
            work = self._held[0]
            seconds = work.ended_s - work.began_s
            if work.began is not None and work.ended is not None and self._make_event is not None:
                try:
                    if not work.ended.query():
                        break
                    seconds = work.began.elapsed_time(work.ended) / 1e3
                except Exception as error:  # noqa: BLE001  after any error of CUDA, training goes on
                    self._do_without(error)
                else:
                    self._pool += [work.began, work.ended]
            self._held.popleft()
            found.append((work.step, seconds))
        return found

    def _record(self) -> Any:
        if self._make_event is None:
            return None
        try:
            event = self._pool.pop() if self._pool else self._make_event()
            event.record()
        except Exception as error:  # noqa: BLE001
            self._do_without(error)
            return None
        return event

    def _do_without(self, error: Exception) -> None:
        self._make_event = None
        self._pool.clear()
        log.warning("CUDA events cannot be used (%s); work is timed by the training thread", error)
