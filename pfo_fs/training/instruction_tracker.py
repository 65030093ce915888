"""Follows training through its schedule: the code that runs at every instruction.

One begin and one end cost about a microsecond: the code walks a list, stores words in the page shared with the clock
process, and rings that process's doorbell only if it sleeps. The code takes no lock, imports nothing, opens no file,
and does not give up the interpreter lock. Where clocks follow the device, a marker (`progress_marker.py`) adds one call
of the CUDA driver to each begin and each end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from time import monotonic_ns
from typing import TYPE_CHECKING

from pfo_fs.device import shared_page
from pfo_fs.device.shared_page import HEAD, MEASURING, RING, RING_MASK, SLEEPING, TARGET
from pfo_fs.training.mark_check import MarkCheck
from pfo_fs.training.progress_marker import ProgressMarker
from pfo_fs.turns import ALL_FOLLOW, Turn

if TYPE_CHECKING:
    from pfo_fs.device.clock_client import ClockProcess

_MAX_ORDER = 65_535
_STEP_TIMES = 16
_MAX_MHZ = 60_000
_MAX_NUMBER = (1 << 62) - 1
"""The highest number of a schedule; it must fit into a word of the page."""

_Entry = tuple[str, int | None, int, int]  # name, stage, MHz in force from here on, code of its BEGIN mark
_END: str = object()  # type: ignore[assignment]
"""Stands for a name at the end of a plan; no name is equal to it."""
_STOP: _Entry = (_END, None, 0, 0)
_NOTHING: list[_Entry] = [_STOP]


class InstructionTracker:
    """Follows the schedule in force, instruction by instruction.

    If a step does not run as scheduled (the list ends early, another name or stage comes, instructions are left over at
    its end), clocks are at their default for the rest of the step; the next step begins at the top of the list again.
    Instructions between two steps, as in an evaluation, are ignored. Without a schedule only marks are written, and the
    order of the first complete step is kept in `observed_order`.

    Args:
        profile_steps: Number of complete steps from which the clock process makes a result. Instructions are marked
            until it has one, but only up to `until` (`step_begin`), or for `10 * (profile_steps + 1)` steps.
        on_mismatch: Called with (position, expected, got), once per schedule and kind of mismatch; may raise.
        on_wrong_marks: Called once, after a few steps, if the callbacks are called wrongly or not at all; may raise.
        is_capturing: Whether what is launched now goes into a CUDA graph.
        takes_error: Called with an error in `begin` or `end`; returns whether training goes on.
        marker: Marks the device's progress, so that clocks follow the device; None: the tracker requests a clock when
            the training thread begins the instruction.

    Attributes:
        observed_order: (name, stage) of each instruction of the first complete step; None until then.
        other_order: Whether the next steps run another order than the scheduler was told of; then they have default
            clocks and are not measured.
        step_times: (step, time from its begin to its end in s, monotonic time of its begin in s) of the last steps, in
            order; the reader removes them.
        turn: Where the page holds the clock of the step that has begun, if that clock can still change; else -1.
    """

    def __init__(
        self,
        clocks: ClockProcess,
        *,
        profile_steps: int = 5,
        on_mismatch: Callable[[int, str, str], None] | None = None,
        on_wrong_marks: Callable[[str], None] | None = None,
        takes_error: Callable[[BaseException], bool] = lambda _: False,
        is_capturing: Callable[[], bool] = lambda: False,
        marker: ProgressMarker | None = None,
    ) -> None:
        self.step_times: deque[tuple[int, float, float]] = deque(maxlen=_STEP_TIMES)
        self._begun = (0, 0)  # the step, and when it has begun, in ns
        self._marker = marker
        self._takes_error = takes_error
        self._is_capturing = is_capturing
        self._graph = 0  # instructions of the step that a CUDA graph holds; its replays call no callbacks
        self._unplanned = 0  # instructions of this step so far for which there is no plan
        self.observed_order: list[tuple[str, int | None]] | None = None
        self.other_order = False
        self._has_changed = False  # whether the order has changed since it was first known
        self._clocks, self._words = clocks, clocks.words
        self._on_mismatch = on_mismatch
        self._mark_check = MarkCheck(on_wrong_marks) if on_wrong_marks is not None else None
        self._begin_codes: dict[str, int] = {}
        self._end_codes: dict[str, int] = {}
        self._schedule: list[_Entry] | None = None
        self._default: list[_Entry] = []  # `_schedule` at default clocks, for steps in which this rank has no turn
        self._told: set[str] = set()
        self._plan = _NOTHING  # the schedule within a step; empty where `_begin_slowly` handles each call
        self._position = 0
        self._target_mhz, self.turn = 0, -1
        self._measuring = False
        self._measured_number: int | None = None
        self._measured_steps = 0  # steps in the expected order that have begun under this number
        self._most_measured_steps = 10 * (profile_steps + 1)
        self._head = clocks.words[HEAD]
        self._step_head = self._head
        self._in_step = self._strayed = False
        self._last_end_ns = 0
        self._order: list[tuple[str, int | None]] | None = None
        self._order_taken = False

    def set_schedule(
        self,
        frequencies: Sequence[tuple[str, int]] | None,
        stages: Sequence[int] | None = None,
        *,
        in_turns: bool = False,
    ) -> None:
        """Makes the next step follow a schedule; None: no schedule, clocks at their default.

        Args:
            frequencies: (instruction, MHz) of each instruction of a step; 0 MHz leaves the clock as it is.
            stages: The stage of each instruction, if this rank holds several stages.
            in_turns: Whether some steps run at default clocks (`turn` of `step_begin`).
        """
        self._told.clear()
        if frequencies is None:
            self._schedule = None
            if self._marker is not None:
                self._marker.set_plan(())
            return
        plan: list[_Entry] = []
        append, codes = plan.append, self._begin_codes
        in_force_mhz = 0
        stage: int | None = None
        # A list may have 65,535 entries, and training waits for this loop.
        for position, (name, mhz) in enumerate(frequencies):
            if mhz:
                in_force_mhz = mhz if 0 < mhz <= _MAX_MHZ else 0
            if stages is not None:
                stage = stages[position]
            append((name, stage, in_force_mhz, codes.get(name) or self._codes(name)))
        if self._marker is not None:
            kinds = [(code >> 8 & 0xFF) | (stage or 0) % 256 << 8 for _, stage, _, code in plan]
            self._marker.set_plan([mhz for _, _, mhz, _ in plan], kinds, in_turns=in_turns)
        append(_STOP)
        self._schedule = plan
        self._default = [(name, stage, 0, code) for name, stage, _, code in plan] if in_turns else []

    def expect_order(self, instructions: Sequence[tuple[str, int | None]]) -> None:
        """Sets (name, stage) of each instruction of a step, so that no step has to be observed."""
        self._has_changed = self.observed_order is not None
        self.observed_order = list(instructions)
        self._order_taken = True

    def disconnect(self) -> None:
        """Stops using the page, in a forked child: it belongs to the parent and its clock process."""
        self._words = memoryview(bytearray(shared_page.WORDS * 8)).cast("q")
        self._schedule = None
        self._marker = None
        self._plan, self._mark_check, self._on_mismatch, self._order = _NOTHING, None, None, None
        self._in_step = self._measuring = False
        self._position = self._target_mhz = 0

    def step_begin(
        self, step: int, number: int, clock_mhz: int | None = None, *, until: int = 0, turn: Turn = ALL_FOLLOW
    ) -> bool:
        """Begins a step; returns whether it has one clock.

        Args:
            number: The number of the schedule in force, under which measurements are reported.
            clock_mhz: The clock of the whole step in MHz, if there is no schedule; 0: the default clock. None: clocks
                are left alone.
            until: The step before which the result of this number ends; 0: after the usual steps; -1: no result.
            turn: Whether this rank follows the schedule in the step; if not, it runs at default clocks.
        """
        if self._mark_check is not None:
            self._mark_check.step_begins(left_open=self._in_step)
        words, self._position, self._last_end_ns, self._in_step, self._strayed = self._words, 0, 0, True, False
        self._plan = (self._schedule if turn.follows else self._default) if self._schedule is not None else _NOTHING
        step = min(max(step, 0), shared_page.MAX_STEP)
        self._begun = step, monotonic_ns()
        one_clock = clock_mhz is not None and self._schedule is None
        number = -1 if one_clock else min(max(number, -1), _MAX_NUMBER)  # this clock is not the schedule's
        self._step_head = self._head
        if number != self._measured_number:
            self._measured_number, self._measured_steps = number, 0
        # A schedule whose length differs from that of the changed order was made before the change: not followed.
        is_old = self._has_changed and len(self._schedule or ()) - 1 not in (-1, len(self.observed_order or ()))
        is_other = self.other_order or is_old
        if self._graph and self._schedule is not None and len(self._schedule) - 1 != self._graph:
            is_other = True
            self._tell("graph", 0, f"{len(self._schedule) - 1} instructions", f"a CUDA graph of {self._graph}")
        self._unplanned = 0
        self._measured_steps += not is_other
        is_over = step >= until if until else self._measured_steps > self._most_measured_steps
        self._measuring = measuring = not (words[shared_page.MEASURED_NUMBER] == number or is_over or is_other)
        if words[MEASURING] != measuring:
            words[MEASURING] = measuring
            if words[SLEEPING]:
                self._clocks.ring_doorbell()  # from now on the clock process reads marks more often
        self.turn = -1
        if self._marker is not None:
            if one_clock and self._marker.works:
                self.turn = self._marker.begin_at(clock_mhz or 0)
            elif self._marker.works:
                self._marker.begin_step(turn, has_plan=not is_other)
            if not self._marker.works:
                self._marker = None
        elif one_clock and clock_mhz != self._target_mhz:
            self._target_mhz = words[TARGET] = clock_mhz or 0
            if words[SLEEPING]:
                self._clocks.ring_doorbell()
        self._order = [] if self._schedule is None and self.observed_order is None else None
        self._mark(shared_page.STEP_BEGIN | step << 8)
        self._mark(shared_page.NUMBER | min(max(until, 0), shared_page.MAX_STEP) << 8, number)
        if is_other and not one_clock:
            self._strayed, self._plan = True, _NOTHING
            if self._marker is None:
                self._release(strayed=True)
        return one_clock

    @property
    def follows_device(self) -> bool:
        """Whether clocks change when the device, not the training thread, reaches an instruction."""
        return self._marker is not None and self._marker.works

    def begin(self, name: str, *, stage: int | None = None) -> None:
        """Begins an instruction: requests the clock of the next entry of the schedule."""
        try:
            position = self._position
            expected, its_stage, mhz, code = self._plan[position]
            if name != expected or (stage != its_stage and stage is not None and its_stage is not None):
                self._begin_slowly(name if isinstance(name, str) else str(name), stage)
                return
            self._position = position + 1
            if self._marker is not None:
                self._marker.mark(position << 1)
            elif mhz != self._target_mhz:
                words = self._words
                self._target_mhz = words[TARGET] = mhz
                if words[SLEEPING]:
                    self._clocks.ring_doorbell()
            if self._measuring:
                words = self._words
                head = self._head
                slot = RING + 2 * (head & RING_MASK)
                words[slot] = monotonic_ns()
                words[slot + 1] = code
                self._head = words[HEAD] = head + 1
        except Exception as error:
            if not self._takes_error(error):
                raise

    def end(self, name: str) -> None:
        try:
            self._last_end_ns = now_ns = monotonic_ns()
            if self._marker is not None and self._position:
                self._marker.mark((self._position << 1) - 1)
            elif self._unplanned:
                self._mark_in_graph((self._unplanned << 1) - 1)
            if self._measuring:
                code = self._end_codes.get(name if isinstance(name, str) else str(name))
                if code is None:
                    return
                words = self._words
                head = self._head
                slot = RING + 2 * (head & RING_MASK)
                words[slot] = now_ns
                words[slot + 1] = code
                self._head = words[HEAD] = head + 1
        except Exception as error:
            if not self._takes_error(error):
                raise

    def step_end(self) -> None:
        """Ends a step: the clocks go to their default, unless the next step begins at once.

        Raises:
            Exception: What `on_mismatch` raises, if instructions are left over, or `on_wrong_marks`.
        """
        if not self._in_step:
            if self._mark_check is not None:
                self._mark_check.step_ends_outside()
            return
        position, self._position = self._position, 0
        expected, stage, _, _ = self._plan[position]
        is_replay = self._graph > 0 and not position and not self._unplanned
        self._measuring = self._measuring and not is_replay
        left_over = expected is not _END and not self._strayed and not is_replay
        strayed = self._strayed or left_over
        self._in_step, self._plan = False, _NOTHING
        count = position or self._unplanned
        if count and self._marker is not None and self._marker.has_captured(2 * count):
            self._graph = count
        self._time_step()
        self._release(strayed=strayed)
        unusable = (shared_page.STRAYED if strayed else 0) + (0 if self._measuring else shared_page.UNMARKED)
        if self._last_end_ns:
            self._mark(shared_page.LAST_END, self._last_end_ns)
            self._last_end_ns = 0
        self._mark(shared_page.STEP_END | unusable << 8)
        is_measured, self._measuring = self._measuring, False
        self._clocks.check()
        if left_over:
            self._tell("left over", position, _shown(expected, stage), "the end of the step")
        elif self.observed_order is None and not strayed:
            if self._schedule is not None:
                self.observed_order = [(entry[0], entry[1]) for entry in self._schedule[:-1]]
            elif self._order:
                self.observed_order = self._order
            self._order = None
        is_whole = self._head - self._step_head <= shared_page.RING_MARKS  # all marks of the step are in the ring
        if is_measured and is_whole and self._mark_check is not None:
            self._mark_check.step_ended(self._step_codes(), self._name_of)

    def take_new_order(self) -> list[tuple[str, int | None]] | None:
        """Returns `observed_order` once, at the first call after it is known."""
        taken, self._order_taken = self._order_taken, self.observed_order is not None
        return None if taken else self.observed_order

    # ---- the rest

    def _begin_slowly(self, name: str, stage: int | None) -> None:
        """Handles an instruction that is not the plan's next: there is no plan, or training does not follow it."""
        if not self._in_step:
            if self._mark_check is not None:
                self._mark_check.instruction_outside()
            return
        self._unplanned += 1
        self._mark_in_graph((self._unplanned << 1) - 2)
        if self._order is not None and len(self._order) < _MAX_ORDER:
            self._order.append((name, stage))
        if self._measuring:
            self._mark(self._begin_codes.get(name) or self._codes(name))
        if self._schedule is None or self._strayed:
            return
        position, self._position = self._position, 0
        expected, its_stage, _, _ = self._plan[position]
        self._strayed, self._plan = True, _NOTHING
        self._release(strayed=True)
        if expected is _END:
            self._tell("ran out", position, "the end of the step", _shown(name, stage))
        else:
            self._tell("another", position, _shown(expected, its_stage), _shown(name, stage))

    def _release(self, *, strayed: bool) -> None:
        if self._marker is not None:
            if strayed:
                self._marker.leave_step()
            elif self._schedule is not None or self.turn >= 0 or self._graph:
                self._marker.end_step()
        elif self._target_mhz != 0:
            words = self._words
            self._target_mhz = words[TARGET] = 0
            if words[SLEEPING]:
                self._clocks.ring_doorbell()

    def _mark_in_graph(self, point: int) -> None:
        """Marks a point of a step without a plan if a CUDA graph captures it: the graph's replays may have a plan."""
        if self._schedule is None and self.turn < 0 and self._marker is not None and self._is_capturing():
            self._marker.mark(point)

    def _time_step(self) -> None:
        step, began_ns = self._begun
        self.step_times.append((step, (monotonic_ns() - began_ns) / 1e9, began_ns / 1e9))

    def _tell(self, kind: str, position: int, expected: str, got: str) -> None:
        if kind not in self._told and self._on_mismatch is not None:
            self._told.add(kind)
            self._on_mismatch(position, expected, got)

    def _step_codes(self) -> Iterable[int]:
        return [self._words[RING + 2 * (mark & RING_MASK) + 1] for mark in range(self._step_head, self._head)]

    def _name_of(self, place: int) -> str:
        return next((name for name, code in self._begin_codes.items() if code >> 8 == place), "?")

    def _codes(self, name: str) -> int:
        number = self._clocks.name_id(name)
        self._end_codes[name] = shared_page.END | number << 8
        code = self._begin_codes[name] = shared_page.BEGIN | number << 8
        return code

    def _mark(self, code: int, first: int | None = None) -> None:
        words = self._words
        slot = RING + 2 * (self._head & RING_MASK)
        words[slot] = monotonic_ns() if first is None else first
        words[slot + 1] = code
        self._head = words[HEAD] = self._head + 1


def _shown(name: str, stage: int | None) -> str:
    return repr(name) if stage is None else f"{name!r} of stage {stage}"
