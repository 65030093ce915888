"""Tells the clock process how far the device has come in the step, instead of how far the training thread has.

A training thread launches kernels ahead of the device, by milliseconds or by whole micro-batches. So that clocks follow
the device, the thread enqueues "the device has reached this point" between the kernels; the device then writes the
point into the page that the clock process reads (`device/clocks/clock_follower.py`). Which clock belongs to which
point stands in the plan, which is written into the page beforehand.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from pfo_fs.device import shared_page
from pfo_fs.device.clocks.followed_plan import START
from pfo_fs.device.shared_page import (
    FOLLOWS,
    IDLE,
    LAUNCHED,
    ONE_CLOCK,
    PLAN,
    POINT_MASK,
    SLEEPING,
    TARGET,
    TURN_SHIFT,
    TURNS,
)
from pfo_fs.errors import DeviceError
from pfo_fs.turns import ALL_FOLLOW, Turn

if TYPE_CHECKING:
    from pfo_fs.device.clock_client import ClockProcess

_NO_PLAN = -1


class ProgressMarker:
    """Marks the points of each step.

    Args:
        enqueue: Makes the device write a number of 32 bits into `PROGRESS` when it gets there; takes about 2 us.
            Returns whether the write goes into a CUDA graph; then it has `REPLAYED` in place of the turn.
        on_problem: Called, perhaps in every step, if points cannot be marked or a CUDA graph's replays not followed.

    Attributes:
        works: False after CUDA has refused a mark or the clock process was lost: marks have no effect any more.
    """

    def __init__(
        self,
        clocks: ClockProcess,
        enqueue: Callable[[int], bool | None],
        on_problem: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.works = True
        self._on_problem = on_problem
        self._captured = self._captured_before = 0  # marks in CUDA graphs, until now and until this step began
        self._clocks = clocks
        self._words = clocks.words
        self._enqueue = enqueue
        self._slot = _NO_PLAN
        self._next_slot = 0
        self._kinds: list[int] = []  # of the plan at default clocks
        self._turn = 0
        self._turn_bits = 0
        self._words[FOLLOWS] = PLAN

    def set_plan(self, clocks_mhz: Sequence[int], kinds: Sequence[int] = (), *, in_turns: bool = False) -> None:
        """Makes the next step follow these clocks, one in MHz for each instruction; an empty list: no plan.

        Args:
            kinds: For each instruction, a number below 65,536 that is the same for the same work.
            in_turns: Whether some steps run at default clocks. These get a plan, too, so that they have the same marks
                and the clock process knows them.
        """
        if not clocks_mhz:
            self._slot = _NO_PLAN
            return
        # The device may still run steps of earlier plans; a slot is used again after three other plans.
        self._slot = self._next_slot
        self._next_slot = (self._next_slot + 1) % shared_page.DEFAULT_SLOT
        shared_page.write_plan(self._words, self._slot, clocks_mhz, kinds)
        if in_turns and self._kinds != list(kinds):
            self._kinds = list(kinds)
            shared_page.write_plan(self._words, shared_page.DEFAULT_SLOT, [0] * len(kinds), kinds)

    def begin_step(self, turn: Turn = ALL_FOLLOW, *, has_plan: bool = True) -> None:
        """Marks the begin of a step; if this rank does not follow the schedule in it, it runs at default clocks."""
        has_plan = has_plan and self._slot != _NO_PLAN
        self._captured_before = self._captured
        if not has_plan:
            self.leave_step()  # an exception may have left a step before its end
            if not self._captured:
                return
        self._words[FOLLOWS] = PLAN
        slot = self._slot if turn.follows else shared_page.DEFAULT_SLOT
        self._next_turn(slot + (shared_page.MIXED if turn.is_mixed else 0) if has_plan else _NO_PLAN)
        self.mark(START)
        if self._captured != self._captured_before:
            self._on_problem(
                "on_step_begin was called while a CUDA graph is captured, so its replays cannot be followed: call it "
                "and on_step_end around the capture and around each replay, or capture single modules"
            )
        elif self._words[shared_page.REPLAYS_DIFFER]:
            self._on_problem(
                "a CUDA graph was not replayed once in each step: default clocks from here on; capture the whole "
                "iteration, and call on_step_begin and on_step_end around each replay"
            )

    def has_captured(self, marks: int) -> bool:
        """Returns whether exactly this number of marks went into a CUDA graph; if so, steps may be replays of it."""
        if self._captured - self._captured_before != marks:
            return False
        self._on_problem(
            "the iteration is in a CUDA graph: its replays follow a schedule, but what their instructions take is not "
            "measured; give a schedule that was made without the graph (docs/switching.md)"
        )
        return True

    def begin_at(self, mhz: int) -> int:
        """Marks the begin of a step that has one clock, in MHz; 0 is the default clock.

        Returns:
            The step's turn: its clock stands in the page, at `TURNS`, and may change there until the step ends.
        """
        self._words[FOLLOWS] = ONE_CLOCK
        self._next_turn(mhz)
        self.mark(START)
        return self._turn

    def end_step(self) -> None:
        """Marks the end of a step: until the next one begins, the clock process may choose the clock."""
        self.mark(IDLE)

    def leave_step(self) -> None:
        """Marks the end of a step that does not run as scheduled: its duration says nothing about other steps."""
        if self._words[LAUNCHED] & POINT_MASK != IDLE:
            self._next_turn(0)
            self.mark(IDLE)

    def _next_turn(self, what: int) -> None:
        self._turn = (self._turn + 1) % shared_page.REPLAYED
        self._turn_bits = self._turn << TURN_SHIFT
        self._words[TURNS + self._turn % shared_page.RECENT_TURNS] = what

    def mark(self, point: int) -> None:
        """Marks a point of the plan: the begin of instruction n is 2 n, its end 2 n + 1."""
        words = self._words
        point |= self._turn_bits
        try:
            if self._enqueue(point):
                self._captured += 1
                return
        except DeviceError as error:
            self._give_up(str(error))
            return
        words[LAUNCHED] = point
        if words[SLEEPING]:
            self._clocks.ring_doorbell()

    def stop(self) -> None:
        """Marks nothing any more, from the next step on: there is no clock process that would read the marks."""
        self.works = False
        self._words[FOLLOWS] = 0

    def _give_up(self, reason: str) -> None:
        if self.works:
            self.stop()
            self._words[TARGET] = 0
            self._clocks.ring_doorbell()
            self._on_problem(f"the device's progress cannot be marked any more ({reason}); clocks follow the callbacks")
