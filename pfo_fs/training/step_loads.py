"""Clocks from loads in the training process: what begins and ends with each step of one rank."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeAlias

from pfo_fs.device.shared_page import RECENT_TURNS, decided_mhz
from pfo_fs.errors import ConfigError
from pfo_fs.ipc import held_calls
from pfo_fs.loads.messages import ReachDecider, StepBegun
from pfo_fs.loads.step_rows import MOST_ENDED, checked_load
from pfo_fs.loads_known import LoadsKnown
from pfo_fs.training.instruction_tracker import InstructionTracker
from pfo_fs.training.load_decider import LoadDecider

if TYPE_CHECKING:
    from pfo_fs.device.clock_client import ClockProcess
    from pfo_fs.helper.link import HelperLink
    from pfo_fs.training.joining import JoinedJob

JoinLoads: TypeAlias = "Callable[[JoinedJob, Callable[[str], None], HelperLink], StepLoads]"
"""Makes the steps of a rank whose job is joined; called with a text, its second argument tells of a problem."""

_AT_ONCE = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL
_TOLD_BYTES = 4096
_MOST_GIVEN = RECENT_TURNS - 2
"""The page has room for the clocks of this number of steps."""
_TELL_EVERY_S = 2.0
"""The state of the loads is told to the helper this often: people read it."""


class LoadLink:
    """Tells this rank's clock process, which exchanges loads with the other ranks.

    Args:
        clocks: The clock process.
        join: How it reaches the process that decides.
    """

    def __init__(self, clocks: ClockProcess, join: ReachDecider) -> None:
        self._fd, self._file = clocks.loads_fd, clocks.loads_file
        self.works = True
        self._send(join.packed())

    def tell(self, begun: StepBegun) -> None:
        """Sends what training tells; does not wait, and keeps the interpreter lock."""
        self._send(begun.packed())

    def _send(self, packet: bytes) -> None:
        if not self._file.seems_open() or held_calls.send(self._fd, packet, len(packet), _AT_ONCE) != len(packet):
            self.works = False  # the exchange has ended, or does not read

    @property
    def told(self) -> str:
        """What the clock process says of its search for the process that decides; empty if nothing is new."""
        with suppress(OSError):
            if self._file.is_open():
                return os.read(self._fd, _TOLD_BYTES).decode("utf-8", "replace")
        return ""

    def close(self) -> None:
        """Ends the exchange; does not wait."""
        self._file.close()


class StepLoads:
    """One rank's steps.

    Args:
        words: The page shared with the clock process.
        link: Tells the clock process, which exchanges loads.
        decider: On rank 0, the process that decides; None on others.
        warn: Called with a text for a warning.
        tell: On rank 0, called with what is known, from time to time.
        micro_batches: In a pipeline, how many a step has; 0 without one.
    """

    def __init__(
        self,
        words: memoryview,
        link: LoadLink,
        decider: LoadDecider | None,
        warn: Callable[[str], object],
        tell: Callable[[LoadsKnown], object] = lambda state: None,
        micro_batches: int = 0,
    ) -> None:
        self._words, self._link, self._decider = words, link, decider
        self.warn, self._tell, self._micro_batches = warn, tell, micro_batches
        self._given: Sequence[Sequence[Any] | None] = (None,)
        self._posted = -1
        self._has_failed = self._has_missed = False
        self._said: set[str] = set()
        self._told_at_s = time.monotonic()

    @property
    def state(self) -> LoadsKnown | None:
        """On rank 0, what is known; None elsewhere, and before the first step."""
        return None if self._decider is None else self._decider.state

    def give(self, loads: Sequence[Sequence[Any] | None]) -> None:
        """Gives the loads of the step that begins next, or None, and of those after it; all ranks give as many."""
        self._given = loads[:_MOST_GIVEN]

    def begin(self, tracker: InstructionTracker, step: int, number: int, *, held: bool) -> None:
        """Begins a step at its clock, as far as that is known; it may still change while the step runs.

        Args:
            tracker: Follows the step.
            step: The step.
            number: The number of the schedule in force.
            held: Whether there is a reason for default clocks.
        """
        now_s = time.monotonic()
        follows = not held and tracker.follows_device
        mhz = decided_mhz(self._words, step) if follows else 0
        if not tracker.step_begin(step, number, mhz):
            mhz = -1
        times = tracker.step_times
        ended = [times.popleft() for _ in range(min(MOST_ENDED, len(times)))]
        turn = tracker.turn if follows else -1
        given, self._given = self._given, (None,)
        last = step + len(given) - 1
        if self._posted >= last:
            self._link.tell(StepBegun(-1, step, turn, mhz, now_s, (), ended))
        while self._posted < last:
            self._posted = max(self._posted + 1, step)
            loads = given[self._posted - step]
            load = self._load_of(loads)
            self._link.tell(StepBegun(self._posted, step, turn, mhz, now_s, load, ended))
            ended = []
        if now_s - self._told_at_s > _TELL_EVERY_S or not (self._link.works or self._has_failed):
            self._told_at_s = now_s
            self._tell_people()

    def _load_of(self, loads: Sequence[Any] | None) -> tuple[float, ...]:
        """Returns the load of a step, or warns once why it has none, and returns an empty one."""
        if loads is None and (self._micro_batches or self._has_missed):
            return ()  # another rank of the pipeline may know it; or there was a warning
        try:
            return checked_load(loads, self._micro_batches)
        except ConfigError as error:
            if not self._has_missed:
                self.misread(f"step {self._posted} has no load that can be used ({error}): default clocks")
            return ()

    def misread(self, why: str) -> None:
        """Warns of loads that cannot be used; of others there is no warning any more."""
        self._has_missed = True
        self.warn(f"clocks from loads: {why}")

    def _tell_people(self) -> None:
        """Warns of what the processes have told, and tells the helper what is known."""
        if told := self._link.told:
            self.warn(f"clocks from loads: {told}; default clocks meanwhile")
        if not self._link.works and not self._has_failed:
            self._has_failed = True
            self.warn("clocks from loads: the ranks cannot exchange loads any more; default clocks from here on")
        if self._decider is not None and (state := self._decider.state) is not None:
            if state.problem and state.problem not in self._said:
                self._said.add(state.problem)
                self.warn(f"clocks from loads: {state.problem}")
            self._tell(state)

    def close(self) -> None:
        """Ends the processes."""
        self._link.close()
        if self._decider is not None:
            self._decider.close()
