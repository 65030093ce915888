"""Marks with the GPU's own times, from CUDA events that are read when they are ready, without waiting for the GPU.

A training thread launches kernels ahead of the GPU, so the times of its calls do not show when an instruction ran. In
the steps that are measured, this tracker therefore records a CUDA event before and after each instruction; in every
step, it records one at the begin and one at the end. It reads the events in later steps and then writes the step's
marks, with the events' times converted to the clock of all other marks (`time.monotonic_ns`). It estimates the
difference of the two clocks from the events: an event never runs before it was recorded, and where the GPU is idle it
runs at once. If CUDA raises an error, marks have the training thread's times from then on. While a CUDA graph is
captured, no event is touched: that would break the capture.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from statistics import median
from time import monotonic_ns
from typing import TYPE_CHECKING, Any, NamedTuple

from pfo_fs.device.shared_page import BEGIN, LAST_END, LEAD_US, STEP_BEGIN, STEP_END
from pfo_fs.training.instruction_tracker import InstructionTracker
from pfo_fs.turns import ALL_FOLLOW, Turn

if TYPE_CHECKING:
    from torch.cuda import Event

    from pfo_fs.device.clock_client import ClockProcess

log = logging.getLogger("pfo_fs")

_MOST_MARKS = 8192
"""A step with more marks is not measured, because CUDA has to be asked for the time of each mark."""
_MOST_HELD = 16
"""If more steps than this wait for their events, the oldest of them is dropped."""
_ANCHORS = 32
"""The difference of the two clocks is estimated over this many steps: they drift by a few millionths."""
_STEP = 0
"""Code of an event at the begin or end of a step, which is not a mark of its own."""
_EPOCH_NS = 60_000_000_000
"""A step that begins after this time, in ns, begins a new epoch: CUDA returns times since its begin as floats in ms."""


class _Held(NamedTuple):
    """A mark of a step whose events are not read yet: its time, or the event that has it."""

    first: int
    code: int
    event: Event | None = None


class _Epoch:
    """A period of time: its events are timed against its first one."""

    def __init__(self, origin: Event) -> None:
        origin.record()
        self.began_ns = monotonic_ns()
        self._origin = origin
        self._anchors: deque[int] = deque(maxlen=_ANCHORS)

    def times_ns(self, marks: Sequence[_Held]) -> list[int]:
        """Returns the times of a step's events, on the clock of `time.monotonic_ns`."""
        device_ns = [round(self._origin.elapsed_time(held.event) * 1e6) for held in marks]
        self._anchors.append(max(held.first - at for held, at in zip(marks, device_ns, strict=True)))
        anchor = max(self._anchors)
        return [at + anchor for at in device_ns]


class CudaEventTracker(InstructionTracker):
    """An instruction tracker whose marks carry the device's own times; `make_event` makes events with timing."""

    def __init__(self, clocks: ClockProcess, make_event: Callable[[], Event], **options: Any) -> None:
        super().__init__(clocks, **options)
        self._make_event = make_event
        self._pool: list[Event] = []
        self._recording = False
        self._keeping = False
        self._events_work = True
        self._step: list[_Held] = []
        self._held: deque[tuple[list[_Held], _Epoch | None]] = deque()
        self._epoch: _Epoch | None = None

    def step_begin(
        self, step: int, number: int, clock_mhz: int | None = None, *, until: int = 0, turn: Turn = ALL_FOLLOW
    ) -> bool:
        """Begins a step; writes the marks of earlier ones whose events are ready."""
        self._flush()
        self._step = []
        self._keeping = True  # `_mark` keeps marks while this is set
        is_old = self._epoch is None or monotonic_ns() - self._epoch.began_ns > _EPOCH_NS
        if is_old and self._events_work and not self._is_capturing():
            self._epoch = self._new_epoch()
        self._record(_STEP)
        one_clock = super().step_begin(step, number, clock_mhz, until=until, turn=turn)
        self._recording, self._measuring = self._measuring, False  # this class makes the marks of instructions
        return one_clock

    def begin(self, name: str, *, stage: int | None = None) -> None:
        super().begin(name, stage=stage)
        if self._recording:
            name = name if isinstance(name, str) else str(name)
            self._record(self._begin_codes.get(name) or self._codes(name))

    def end(self, name: str) -> None:
        super().end(name)
        if self._recording:
            code = self._end_codes.get(name if isinstance(name, str) else str(name))
            if code is not None:
                self._record(code)

    def step_end(self) -> None:
        if not self._in_step:
            super().step_end()
            return
        self._record(_STEP)
        self._measuring, self._recording = self._recording, False
        try:
            super().step_end()
        finally:
            self._keeping = False
            self._held.append((self._step, self._epoch))
            self._step = []
            if len(self._held) > _MOST_HELD:
                self._held.popleft()
            self._flush()

    def disconnect(self) -> None:
        """Stops using the page and CUDA, in a forked child."""
        super().disconnect()
        self._events_work = self._recording = self._keeping = False
        self._pool.clear()
        self._held.clear()
        self._step = []

    # ---- events

    def _new_epoch(self) -> _Epoch | None:
        try:
            return _Epoch(self._make_event())
        except Exception as error:  # noqa: BLE001  after any error of CUDA, training goes on
            self._do_without(error)
            return None

    def _record(self, code: int) -> None:
        """Notes a mark with the time of an event; without events, with the training thread's time."""
        is_capturing = self._is_capturing()
        if code != _STEP and (is_capturing or len(self._step) >= _MOST_MARKS):
            self._recording = False  # the step counts as one without marks
            self._pool += [held.event for held in self._step if held.event is not None and held.code != _STEP]
            self._step = [held for held in self._step if held.event is None or held.code == _STEP]
            return
        now_ns, event = monotonic_ns(), None
        if self._events_work and not is_capturing:
            try:
                event = self._pool.pop() if self._pool else self._make_event()
                event.record()
            except Exception as error:  # noqa: BLE001
                event = None
                self._do_without(error)
        self._step.append(_Held(now_ns, code, event))

    def _do_without(self, error: Exception) -> None:
        if not self._events_work:
            return
        self._events_work = False
        self._pool.clear()
        log.warning("CUDA events cannot be used (%s); instructions are timed by the training thread", error)

    def _step_codes(self) -> Iterable[int]:
        return [held.code for held in self._step]

    def _mark(self, code: int, first: int | None = None) -> None:
        if self._keeping:
            self._step.append(_Held(monotonic_ns() if first is None else first, code))
        else:
            super()._mark(code, first)

    def _flush(self) -> None:
        """Writes the marks of the oldest steps whose events are ready."""
        while self._held and not self._is_capturing():
            marks, epoch = self._held[0]
            try:
                if self._events_work and not all(held.event is None or held.event.query() for held in reversed(marks)):
                    return
                times_ns = self._times_ns(marks, epoch)
            except Exception as error:  # noqa: BLE001
                self._do_without(error)
                times_ns = [held.first for held in marks]
            self._held.popleft()
            self._write(marks, times_ns)

    def _times_ns(self, marks: Sequence[_Held], epoch: _Epoch | None) -> list[int]:
        """Returns the time of each mark: that of its event, if it has one."""
        if not self._events_work or epoch is None:
            return [held.first for held in marks]
        events = [held for held in marks if held.event is not None]
        device_ns = iter(epoch.times_ns(events) if events else ())
        return [held.first if held.event is None else next(device_ns) for held in marks]

    def _time_step(self) -> None:
        """Does nothing: the time of a step is that of its events."""

    def _write(self, marks: Sequence[_Held], times_ns: Sequence[int]) -> None:
        leads_ns = [
            at_ns - held.first
            for held, at_ns in zip(marks, times_ns, strict=True)
            if held.event is not None and held.code & 0xFF == BEGIN
        ]
        if leads_ns and self._events_work:
            self._words[LEAD_US] = max(0, round(median(leads_ns) / 1000))
        step_began_ns, step_ended_ns = (
            at_ns for held, at_ns in zip(marks, times_ns, strict=True) if held.code == _STEP
        )
        took_ns = step_ended_ns - step_began_ns
        begin_ns = step = 0
        for held, at_ns in zip(marks, times_ns, strict=True):
            kind = held.code & 0xFF
            if held.event is not None and self._events_work:
                self._pool.append(held.event)
            if held.code == _STEP:
                continue
            if kind == STEP_BEGIN:
                begin_ns, step = at_ns, held.code >> 8
            elif kind == LAST_END and self._events_work:
                at_ns = begin_ns + took_ns
            elif kind == STEP_END:
                self.step_times.append((step, took_ns / 1e9, step_began_ns / 1e9))
                at_ns = max(at_ns, begin_ns + took_ns)  # training may go on to the next step before the device ends
            super()._mark(held.code, at_ns)
