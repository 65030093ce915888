"""Puts a setting of a GPU back and verifies that; clocks and power limits are put back in the same way.

A call that puts a setting back can fail, and can return without an effect. So the call is repeated with growing pauses
until it has succeeded and the GPU shows nothing of the setting any more. Power limits can be read. NVML does not tell
locked clocks: a clock above the lock, or an idle GPU below it, shows that the lock is gone, and a clock that stays
exactly at the lock shows that it still holds. If the GPU shows neither, a call that returns has succeeded.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from pfo_fs.device.clocks.undo_note import SAME_W, UndoNote, clock_note, limit_note
from pfo_fs.device.gpu.driver_errors import NEVER, Pauses, patiently
from pfo_fs.device.gpu.interface import POWER_CAP
from pfo_fs.device.gpu.spec import open_gpu
from pfo_fs.errors import DeviceError

if TYPE_CHECKING:
    from pfo_fs.device.clock_start import ClockOptions
    from pfo_fs.device.gpu.interface import Gpu

UNDO_FOR_S = 120.0
"""After its trainer has ended, a clock process tries for this time to put all back; then a note tells the next one."""

LEFT_TO = "the next pfo-fs job on this GPU and host tries again, or `pfo-fs reset-clocks`"
_FIRST_S, _LONGEST_S = 0.05, 10.0
_SHOWS_WITHIN_NS = 1_000_000_000
_LOOK_EVERY_NS = 50_000_000
"""A setting is looked at for a second after it was put back, every 50 ms: drivers show a change within some ms."""


class Undo:
    """One setting of one GPU.

    Args:
        what: What is put back, for messages: "default clocks".
        shows: Returns whether the GPU still shows a value that was set; None if it does not tell. May raise.

    Attributes:
        in_force: Called with the value in force after an attempt, and when an attempt turns out to have had no effect.
        value: The value that was set last; None while nothing is to be put back.
        owed: Whether the setting must be put back, and the driver has not done so yet.
        problem: Why it is not put back yet; empty while nothing has failed.
        due_ns: When `go_on` has something to do.
    """

    def __init__(
        self, what: str, note: UndoNote, put_back: Callable[[float], None], shows: Callable[[float], bool | None]
    ) -> None:
        self.in_force: Callable[[float], None] = lambda value: None
        self._what = what
        self.note = note
        self._put_back = put_back
        self._shows = shows
        self._pauses = Pauses(_FIRST_S, _LONGEST_S, even_if_missing=True)
        self._look_until_ns = 0
        self._noted: list[tuple[float, float]] = []
        self.before = 0.0
        self.value: float | None = None
        self.owed = False
        self.problem = ""
        self.due_ns = NEVER

    @property
    def failures(self) -> int:
        return self._pauses.failures

    @property
    def is_done(self) -> bool:
        """Whether nothing is to be done, or to be looked at."""
        return self.due_ns == NEVER

    def will_set(self, value: float, before: float, *, renew: bool = False) -> None:
        """Notes the value that is set next; with `renew`, in place of all but the last one, else beside all others."""
        self.before, self.value = before, value
        self.owed, self.problem, self.due_ns = False, "", NEVER
        if renew:
            del self._noted[:-1]
        if (before, value) not in self._noted:
            self.note.write(before, value, [noted for _, noted in self._noted])
            self._noted.append((before, value))

    def owe(self, value: float | None = None, before: float = 0.0) -> None:
        """Makes an attempt due now.

        Where another process has set the GPU, `value` is what it has set (0: not known), and `before` is put back.
        """
        if value is not None:
            self.value, self.before = value, before
        if self.value is not None:
            self.owed, self.due_ns = True, 0
            self._pauses.start_anew()

    def was_put_back(self, now_ns: int, look_in_ns: int = 0) -> None:
        """Notes that the driver says that it has put the setting back; the GPU is looked at after `look_in_ns`."""
        self.owed = False
        if self.value is None:
            self._note_done()
        else:
            self.due_ns, self._look_until_ns = now_ns + look_in_ns, now_ns + look_in_ns + _SHOWS_WITHIN_NS

    def now(self) -> None:
        self.owe()
        self.go_on(time.monotonic_ns())

    def go_on(self, now_ns: int) -> None:
        """Does what is due: an attempt, or a look whether the last one has had its effect."""
        if now_ns < self.due_ns or self.value is None:
            return
        if self.problem and self._is_taken():
            self._forget()
            self.in_force(self.before)  # what this process has set holds no longer
            return
        if self.owed:
            try:
                self._put_back(self.before)
            except Exception as error:  # noqa: BLE001  whatever a driver raises, the next attempt follows
                self._failed(now_ns, str(error) or repr(error))
                return
            self.in_force(self.before)
            now_ns = time.monotonic_ns()
            self.was_put_back(now_ns)
        self._look(now_ns)

    def _is_taken(self) -> bool:
        """Whether a note says that another process has set the GPU since: then the GPU is left to that process."""
        left = self.note.leftover()
        return left is not None and left.in_use and not left.is_own

    def _look(self, now_ns: int) -> None:
        assert self.value is not None
        try:
            shows = self._shows(self.value)
        except Exception:  # noqa: BLE001  it does not tell
            shows = None
        if not shows or self._is_taken():
            self._note_done()
        elif now_ns < self._look_until_ns:
            self.due_ns = now_ns + _LOOK_EVERY_NS
        else:
            self.owed = True
            self.in_force(self.value)
            self._failed(now_ns, f"the driver reports success, but the GPU is still at {self.value:g}")

    def _failed(self, now_ns: int, why: str) -> None:
        self._pauses.failed(now_ns, DeviceError(why))
        self.due_ns = self._pauses.due_ns
        pauses = f"{self.failures} attempts failed; {self._pauses.text}"
        self.problem = f"{self._what} could not be restored ({pauses}): {why}"

    def _note_done(self) -> None:
        self.note.remove()
        self._forget()

    def _forget(self) -> None:
        self.value, self._noted = None, []
        self.owed, self.problem, self.due_ns = False, "", NEVER


class GpuUndo:
    """What is to be put back on a GPU: the locked clock, in MHz, and the power limit, in W."""

    def __init__(self, gpu: Gpu) -> None:
        uuid = "" if gpu.clock_backend == "dry run" else gpu.uuid  # a dry run has no notes: it undoes nothing
        self._gpu = gpu
        note = clock_note("" if gpu.clock_backend == POWER_CAP else uuid)
        self.clock = Undo("the default clocks", note, lambda _: gpu.reset_clocks(), lambda m: gpu.shows_clock(round(m)))
        self.limit = Undo("the power limit", limit_note(uuid), gpu.set_power_limit_w, self._shows_limit)
        self._both = (self.clock, self.limit)

    def _shows_limit(self, _: float) -> bool:
        return abs(self._gpu.power_limit_w() - self.limit.before) > SAME_W

    @property
    def owed(self) -> int:
        """How many settings are to be put back, and could not be yet."""
        return sum(undo.owed and undo.failures > 0 for undo in self._both)

    @property
    def failures(self) -> int:
        return sum(undo.failures for undo in self._both)

    @property
    def problem(self) -> str:
        """Why settings are not put back yet; empty while nothing has failed."""
        return "; ".join(undo.problem for undo in self._both if undo.problem)

    @property
    def due_ns(self) -> int:
        return min(undo.due_ns for undo in self._both)

    def take_over(self, *, clock_is_reset: bool = False) -> None:
        """Makes a first attempt to put back what an ended process has left, as its notes say.

        A note about a power limit that is not in force any more is removed: another process has set one since. If the
        clock was just reset (`clock_is_reset`), only its effect on the GPU is looked at.
        """
        with suppress(Exception):
            left = self.limit.note.leftover()
            if left is not None and not left.in_use and not left.is_of(self._gpu.power_limit_w(), SAME_W):
                self.limit.note.remove()
        for undo in self._both:
            left = undo.note.leftover()
            if left is not None and not left.in_use:
                value = left.value
                with suppress(DeviceError):  # the GPU may be at any of the clocks that the process has set
                    value = left.nearest(self._gpu.clock_seen().mhz) if undo is self.clock else value
                undo.owe(value, left.before)
                if clock_is_reset and undo is self.clock:
                    undo.was_put_back(time.monotonic_ns())
                undo.go_on(time.monotonic_ns())

    def finish(self, for_s: float, meanwhile: Callable[[], None] = lambda: None) -> str:
        """Goes on until everything is put back and verified, or time is over; returns what is not put back, or ''."""
        until_ns = time.monotonic_ns() + round(for_s * 1e9)
        while True:
            for undo in self._both:
                undo.go_on(time.monotonic_ns())
            if self.due_ns == NEVER:
                return ""
            meanwhile()
            now_ns = time.monotonic_ns()
            if now_ns >= until_ns:
                return self.problem or f"the GPU has not shown within {for_s:g} s that it is reset"
            time.sleep(max(1_000_000, min(min(self.due_ns, until_ns) - now_ns, 500_000_000)) / 1e9)


def reset_left(gpu: Gpu, for_s: float, *, locked_mhz: float = 0.0, power_limit_w: float | None = None) -> str:
    """Resets what an ended job has left on a GPU, until that is verified; returns what could not be done, or ''.

    Args:
        for_s: The longest time; attempts that hang take longer.
        locked_mhz: The clock at which the GPU may be locked; 0 if it is not known.
        power_limit_w: The power limit to set; None: what a note says, if that limit is still in force.
    """
    undo = GpuUndo(gpu)
    undo.clock.owe(locked_mhz)
    if power_limit_w is None:
        undo.take_over()
    else:
        undo.limit.owe(0.0, power_limit_w)
    return undo.finish(for_s)


def reset_left_by(spec: str, options: ClockOptions, power_limit_w: float | None = None) -> str:
    """Puts back what a clock process that has died has left on its GPU; returns why that is not done, or ''.

    `power_limit_w`: the limit before that process set one, in W; used only if that process left no note.
    """
    backend = options.clock_backend
    try:
        gpu = patiently(lambda: open_gpu(spec, backend), attempts=12, first_s=0.1, within_s=UNDO_FOR_S)
    except DeviceError as error:
        return str(error)
    undo = GpuUndo(gpu)
    is_reset = not options.leave_clocks and not gpu.try_reset()  # chooses a way that works
    if not options.leave_clocks and not is_reset:
        undo.clock.owe(0.0)
    is_noted = undo.limit.note.leftover() is not None
    undo.take_over(clock_is_reset=is_reset)
    if power_limit_w is not None and not is_noted:
        undo.limit.owe(0.0, power_limit_w)
    return undo.finish(UNDO_FOR_S)
