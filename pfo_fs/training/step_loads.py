"""Clocks from loads in the training process: what begins and ends with each step of one rank."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from pfo_fs.device.shared_page import newest_reading
from pfo_fs.loads import step_rows
from pfo_fs.loads.state import LoadsState
from pfo_fs.training.instruction_tracker import InstructionTracker
from pfo_fs.training.load_exchange import LoadExchange
from pfo_fs.training.load_process import LoadProcess
from pfo_fs.training.work_times import WorkTimes

if TYPE_CHECKING:
    from pfo_fs.training.helper_link import HelperLink
    from pfo_fs.training.joining import JoinedJob

JoinLoads: TypeAlias = "Callable[[JoinedJob, Callable[[str], None], HelperLink], StepLoads]"
"""Makes the steps of a rank whose job is joined; called with a text, its second argument tells of a problem."""

_KEPT = 32
"""So many steps may be ahead of the one that runs."""
_MOST_LATE = 8
"""The clock of a step may come until so many others have begun; the device may not have run it by then."""
_SOON_S = 0.05
"""A clock that comes so soon after the begin of a step counts as that of the whole step."""
_TELL_EVERY_S = 2.0


class StepLoads:
    """One rank's steps; making one is a collective call.

    Args:
        rank: Global rank.
        top_mhz: The highest clock.
        words: The page shared with the clock process.
        work_times: Times the work of each step.
        warn: Called with a text for a warning.
        tell: On rank 0, called with the state from time to time.
    """

    def __init__(
        self,
        rank: int,
        top_mhz: int,
        words: memoryview,
        work_times: WorkTimes,
        warn: Callable[[str], object],
        tell: Callable[[LoadsState], object] = lambda state: None,
    ) -> None:
        self._process: LoadProcess | None = None
        self._words, self._work_times, self._warn, self._tell = words, work_times, warn, tell
        self._top_mhz = top_mhz
        self._lock = threading.Lock()  # the exchange's thread holds it for a few microseconds
        self._decided: OrderedDict[int, int] = OrderedDict()
        self._late: OrderedDict[int, tuple[float, Callable[[int], None]]] = OrderedDict()
        self._ran: OrderedDict[int, float] = OrderedDict()  # the clock of each step in MHz, NaN if it changed
        self._ended: list[step_rows.EndedStep] = []
        self._given: tuple[Iterable[Any] | None, ...] = (None,)
        self._posted = -1
        self._without_load = self._told_without_load = 0
        self._failure = ""
        self._told_at_s = 0.0
        self._exchange = LoadExchange(
            rank, step_rows.WIDTH, self._decide if rank == 0 else None, self._on_decided, self._on_failed
        )

    def decide_by(self, process: LoadProcess) -> None:
        """On rank 0, before the first step: takes the process that chooses the clocks."""
        self._process = process

    @property
    def state(self) -> LoadsState | None:
        """On rank 0, what is known; None elsewhere, and before the first step."""
        return None if self._process is None else self._process.state

    def give(self, loads: Iterable[Any] | None, ahead: Sequence[Iterable[Any] | None] = ()) -> None:
        """Gives the loads of the step that begins next, or None, and of those after it; all ranks give as many."""
        self._given = (loads, *ahead)

    def begin(self, tracker: InstructionTracker, step: int, number: int, *, held: bool) -> None:
        """Begins a step at its clock, as far as that is known; the exchange may still change it.

        Args:
            tracker: Follows the step.
            step: The step.
            number: The number of the schedule in force.
            held: Whether there is a reason for default clocks.
        """
        if self._without_load and not self._told_without_load:
            self._told_without_load = self._without_load
            self._warn("clocks from loads: a step has no load that can be used; such steps have default clocks")
        if self._failure:
            failure, self._failure = self._failure, ""
            self._warn(f"clocks from loads: the ranks cannot exchange loads any more ({failure}); default clocks")
        if self._process is not None and time.monotonic() - self._told_at_s > _TELL_EVERY_S:
            self._told_at_s = time.monotonic()
            if (state := self._process.state) is not None:
                self._tell(state)
        for past, seconds in self._work_times.take():
            self._ended.append(step_rows.EndedStep(past, seconds, self._ran.pop(past, step_rows.UNKNOWN)))
        given, self._given = self._given, (None,)
        for later, loads in enumerate(given):
            if step + later > self._posted:
                self._posted = step + later
                ended, self._ended = self._ended, []
                self._exchange.post(self._posted, partial(self._row, self._posted, step, loads, ended))
        with self._lock:
            mhz = 0 if held else self._decided.pop(step, 0)
            for past in [each for each in self._decided if each < step]:
                del self._decided[past]
        self._ran[step] = float(mhz or self._top_mhz)
        while len(self._ran) > _KEPT:
            self._ran.popitem(last=False)
        self._work_times.begin(step)
        if not tracker.step_begin(step, number, mhz):
            self._ran[step] = step_rows.UNKNOWN  # a schedule is in force
        change = tracker.late_clock
        if not mhz and not held and change is not None:
            self._accept_late(step, change)

    def _accept_late(self, step: int, change: Callable[[int], None]) -> None:
        """Lets the clock of the step that has just begun come late."""
        with self._lock:
            self._late[step] = time.monotonic(), change
            while len(self._late) > _MOST_LATE:
                self._late.popitem(last=False)
            mhz = self._decided.pop(step, 0)
            if mhz:  # it has come since the step was begun
                change(mhz)
                self._ran[step] = float(mhz)

    def end(self) -> None:
        """Ends this rank's own work in the step, as far as training has launched it."""
        self._work_times.end()

    def close(self) -> None:
        """Ends the exchange."""
        with self._lock:
            self._late.clear()
        self._exchange.close()
        if self._process is not None:
            self._process.close()

    # ---- in the exchange's thread

    def _row(
        self, step: int, runs: int, loads: Iterable[Any] | None, ended: Sequence[step_rows.EndedStep]
    ) -> list[float]:
        load = step_rows.load_of_step(loads)
        self._without_load += not load
        reading = newest_reading(self._words)
        energy = step_rows.Reading(runs)
        if reading is not None:
            energy = step_rows.Reading(runs, reading.energy_uj / 1e6, reading.time_ns / 1e9)
        return step_rows.make_row(step, load, energy, ended)

    def _decide(self, rows: Any, at_s: float) -> bytes:
        assert self._process is not None
        return self._process.decide(rows, at_s)

    def _on_decided(self, step: int, mhz: int) -> None:
        with self._lock:
            self._decided[step] = mhz
            while len(self._decided) > _KEPT:
                self._decided.popitem(last=False)
            began_s, change = self._late.get(step, (0.0, None))
            if change is not None and mhz:
                change(mhz)
                self._ran[step] = float(mhz) if time.monotonic() - began_s < _SOON_S else step_rows.UNKNOWN

    def _on_failed(self, problem: str) -> None:
        self._failure = problem
