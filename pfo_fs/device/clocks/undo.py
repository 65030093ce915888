"""Puts a setting of a GPU back, and does not believe that before it is sure: one mechanism for clocks and power limits.

A call that puts a setting back can fail, and can return without an effect. So it is made again with growing pauses
until it has succeeded and the GPU shows nothing of the setting any more. Power limits can be read. NVML does not tell
locked clocks: a clock above the lock, or an idle GPU below it, shows that the lock is gone, and a clock that stays
exactly at it shows that it is not. Where the GPU shows neither, the return of the call is what counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from pfo_fs.device.clocks.undo_note import UndoNote, clock_note, limit_note
from pfo_fs.device.gpu.driver_errors import NEVER, Pauses, patiently
from pfo_fs.device.gpu.spec import open_gpu
from pfo_fs.errors import DeviceError

if TYPE_CHECKING:
    from pfo_fs.device.clock_start import ClockOptions
    from pfo_fs.device.gpu.interface import Gpu

UNDO_FOR_S = 120.0
"""After its trainer has ended, a clock process tries for two minutes to put all back; then a note tells the next."""

LEFT_TO = "the next pfo-fs job on this GPU and host goes on, or `pfo-fs reset-clocks`"
SAME_W = 0.5
"""Power limits that differ by less are the same."""
_FIRST_S, _LONGEST_S = 0.05, 10.0
_SHOWS_WITHIN_NS = 1_000_000_000
_LOOK_EVERY_NS = 50_000_000
"""A setting is looked at for a second after it was put back, every 50 ms: drivers show a change within some ms."""


class UndoState(NamedTuple):
    """What could not be put back on a GPU.

    Attributes:
        owed: Settings that are to be put back, and are not yet.
        problem: Why; empty while nothing has failed.
        is_limited: Whether a power limit of this process may be in force.
    """

    owed: int = 0
    failures: int = 0
    problem: str = ""
    is_limited: bool = False


class Undo:
    """One setting of one GPU.

    Args:
        what: What is put back, for messages: "default clocks".
        shows: Returns whether the GPU still shows a value that was set; None if it does not tell. May raise.
        in_force: Called with the value that is in force after an attempt, or when one turns out to have had no effect.

    Attributes:
        value: The value that was set last; None while nothing is to be put back.
        owed: Whether it must be put back, and the driver has not done so yet.
        problem: Why it is not put back yet; empty while nothing has failed.
        due_ns: When `go_on` has something to do.
    """

    def __init__(
        self,
        what: str,
        note: UndoNote,
        put_back: Callable[[float], None],
        shows: Callable[[float], bool | None],
        in_force: Callable[[float], None] = lambda value: None,
    ) -> None:
        self._in_force = in_force
        self._what = what
        self._note = note
        self._put_back = put_back
        self._shows = shows
        self._pauses = Pauses(_FIRST_S, _LONGEST_S, even_if_missing=True)
        self._look_until_ns = 0
        self._noted: tuple[float, float] | None = None
        self.before = 0.0
        self.value: float | None = None
        self.owed = False
        self.problem = ""
        self.due_ns = NEVER

    @property
    def failures(self) -> int:
        """How many attempts have failed so far."""
        return self._pauses.failures

    @property
    def is_done(self) -> bool:
        """Whether nothing is to be done, or to be looked at."""
        return self.due_ns == NEVER

    def will_set(self, value: float, before: float, *, renew: bool = False) -> None:
        """Notes that `value` is about to be set in place of `before`."""
        earlier, self.before, self.value = self.value, before, value
        self.owed, self.problem, self.due_ns = False, "", NEVER
        if self._noted is None or (renew and self._noted != (before, value)):
            self._note.write(before, value, earlier)
            self._noted = before, value

    def take_over(self, *, done: bool = False) -> None:
        """Puts back what an ended process has left, as its note says: makes a first attempt.

        Args:
            done: Whether the driver says that it has been put back already; the GPU is looked at.
        """
        left = self._note.left()
        if left is not None and not left.in_use:
            self.owe(left.value, left.before)
            if done:
                self.was_put_back(time.monotonic_ns())
            self.go_on(time.monotonic_ns())

    def owe(self, value: float | None = None, before: float = 0.0) -> None:
        """Makes an attempt due now.

        Args:
            value: What may be in force, if this object has not set it: 0 if it is not known.
            before: What to put back then.
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

    def now(self) -> bool:
        """Makes one attempt now; returns whether the driver says that it has put the setting back."""
        self.owe()
        self.go_on(time.monotonic_ns())
        return not self.owed

    def go_on(self, now_ns: int) -> None:
        """Does what is due: an attempt, or a look whether the last one has had its effect."""
        if now_ns < self.due_ns or self.value is None:
            return
        if self.problem and self._is_taken():
            self._forget()
            return
        if self.owed:
            try:
                self._put_back(self.before)
            except Exception as error:  # noqa: BLE001  whatever a driver raises, the next attempt follows
                self._failed(now_ns, str(error) or repr(error))
                return
            self._in_force(self.before)
            now_ns = time.monotonic_ns()
            self.was_put_back(now_ns)
        self._look(now_ns)

    def _is_taken(self) -> bool:
        """Whether another process has set the GPU since, as its note says: the GPU is left to that one."""
        left = self._note.left()
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
            self._in_force(self.value)
            self._failed(now_ns, f"the driver reports success, but the GPU is still at {self.value:g}")

    def _failed(self, now_ns: int, why: str) -> None:
        self._pauses.failed(now_ns, DeviceError(why))
        self.due_ns = self._pauses.due_ns
        self.problem = (
            f"{self._what} could not be restored ({self.failures} attempts failed; {self._pauses.text}): {why}"
        )

    def _note_done(self) -> None:
        self._note.remove()
        self._forget()

    def _forget(self) -> None:
        self.value, self._noted = None, None
        self.owed, self.problem, self.due_ns = False, "", NEVER


def _noted(gpu: Gpu) -> str:
    """Returns the UUID for a GPU's notes; '' in a dry run, which changes nothing and finishes nothing."""
    return "" if gpu.clock_backend == "dry run" else gpu.uuid


def clock_undo(gpu: Gpu, in_force: Callable[[float], None] = lambda mhz: None) -> Undo:
    """Returns the undo of a GPU's locked clock."""

    def shows(mhz: float) -> bool | None:
        return gpu.shows_clock(round(mhz))

    return Undo("the default clocks", clock_note(_noted(gpu)), lambda _: gpu.reset_clocks(), shows, in_force)


def limit_undo(gpu: Gpu) -> Undo:
    """Returns the undo of a GPU's power limit, in W."""
    undo: Undo

    def shows(_: float) -> bool:
        return abs(gpu.power_limit_w() - undo.before) > SAME_W

    undo = Undo("the power limit", limit_note(_noted(gpu)), gpu.set_power_limit_w, shows)
    return undo


def take_over(gpu: Gpu, clock: Undo, limit: Undo, *, clock_is_reset: bool = False) -> None:
    """Puts back what a process that has ended has left on a GPU, as its notes say: makes a first attempt.

    A note about a power limit that is not in force any more is removed: another process has set one since.

    Args:
        clock_is_reset: Whether the driver says that the clock has just been reset.
    """
    note = limit_note(_noted(gpu))
    left = note.left()
    if left is not None and not left.in_use:
        with suppress(Exception):
            if not left.is_of(gpu.power_limit_w(), SAME_W):
                note.remove()
    clock.take_over(done=clock_is_reset)
    limit.take_over()


def finish(undos: Sequence[Undo], for_s: float, meanwhile: Callable[[], None] = lambda: None) -> bool:
    """Goes on until everything is put back and verified, but for no longer than `for_s`; returns whether it is.

    Args:
        for_s: The longest time, in s; attempts that hang take longer.
    """
    until_ns = time.monotonic_ns() + round(for_s * 1e9)
    while True:
        for undo in undos:
            undo.go_on(time.monotonic_ns())
        if all(undo.is_done for undo in undos):
            return True
        meanwhile()
        now_ns = time.monotonic_ns()
        if now_ns >= until_ns:
            return False
        pause_ns = min(min(undo.due_ns for undo in undos), until_ns) - now_ns
        time.sleep(max(1_000_000, min(pause_ns, 500_000_000)) / 1e9)


def state_of(undos: Sequence[Undo]) -> UndoState:
    """Returns what could not be put back, of several settings of one GPU."""
    owed = sum(undo.owed and undo.failures > 0 for undo in undos)
    failures = sum(undo.failures for undo in undos)
    return UndoState(owed, failures, "; ".join(undo.problem for undo in undos if undo.problem))


def reset_left(gpu: Gpu, for_s: float, *, locked_mhz: float = 0.0, power_limit_w: float | None = None) -> str:
    """Resets what an ended job has left on a GPU, until that is verified; returns what could not be done, or ''.

    Args:
        for_s: The longest time, in s; attempts that hang take longer.
        locked_mhz: The clock at which it may be locked; 0 if it is not known.
        power_limit_w: The power limit to set, in W; None: what a note says, if that limit is still in force.
    """
    clock, limit = clock_undo(gpu), limit_undo(gpu)
    clock.owe(locked_mhz)
    if power_limit_w is None:
        take_over(gpu, clock, limit)
    else:
        limit.owe(0.0, power_limit_w)
    return what_is_left((clock, limit), for_s)


def reset_left_by(spec: str, options: ClockOptions, power_limit_w: float | None = None) -> str:
    """Puts back what a clock process that has died has left on its GPU; returns why that is not done, or ''.

    Args:
        power_limit_w: The power limit that was in force before it, in W; None: what its note says.
    """
    backend = options.clock_backend
    try:
        gpu = patiently(lambda: open_gpu(spec, backend), attempts=12, first_s=0.1, within_s=UNDO_FOR_S)
    except DeviceError as error:
        return str(error)
    clock, limit = clock_undo(gpu), limit_undo(gpu)
    is_reset = not options.leave_clocks and not gpu.try_reset()  # chooses a way that works
    if not options.leave_clocks and not is_reset:
        clock.owe(0.0)
    is_noted = limit_note(gpu.uuid).left() is not None
    take_over(gpu, clock, limit, clock_is_reset=is_reset)
    if power_limit_w is not None and not is_noted:
        limit.owe(0.0, power_limit_w)
    return what_is_left((clock, limit), UNDO_FOR_S)


def what_is_left(undos: Sequence[Undo], for_s: float) -> str:
    """Goes on until everything is put back, for no longer than `for_s` seconds; returns what is not, or ''."""
    if finish(undos, for_s):
        return ""
    return state_of(undos).problem or f"the GPU has not shown within {for_s:g} s that it is reset"
