"""The page that the training process and its clock process share: the clock requested now, and marks of what ran when.

It is anonymous memory (memfd), mapped by both processes and seen as 64-bit words. To ask for a clock, training stores
one aligned word: it takes no lock, makes no system call and keeps the interpreter lock. Each word has one writer,
except `SLEEPING`, which is a hint.

Why not a pipe: measured on 2 cores, a write that wakes the sleeping reader costs the training thread 9 us, and any call
that gives up the interpreter lock costs it up to 5 ms while other Python threads are busy (99th percentile 16 ms). So
training rings a doorbell, and only when the clock process sleeps.

Where clocks are switched at the time of training's calls, training writes the clock that it wants into `TARGET`. Where
they follow the device (`FOLLOWS`), the page holds the clocks of a whole step (`write_plan`), and the device writes into
`PROGRESS` how far it has come; training enqueues these writes into its CUDA stream.

Marks are needed only for measuring. The clock process reads them up to the `HEAD` of its previous reading: on
processors that reorder stores (aarch64) the words of the newest marks may arrive after the head.
"""

from __future__ import annotations

import math
import mmap
import os
from array import array
from collections.abc import Sequence
from typing import NamedTuple

from pfo_fs.ipc.system_calls import open_memory

# Words, by cache line (8 words): what each side writes often does not share a line with what the other writes.
MAGIC = 0
TARGET = 8
"""MHz requested now; 0 resets the clocks to the default of the driver. Training writes this word and those up to 14."""
HEAD = 9
"""Count of marks written so far."""
MEASURING = 10
"""1 while training writes BEGIN and END marks."""
NAME_COUNT = 11
"""Count of entries in the name table."""
FOLLOWS = 12
"""0 if clocks follow `TARGET`; `PLAN` or `ONE_CLOCK` if they follow `PROGRESS`."""
LAUNCHED = 13
"""The last point that training has launched; the device is done when `PROGRESS` is the same."""
LEAD_US = 14
"""How far training ran ahead of the device when it launched, in us; -1 before it is known."""
SLEEPING = 16
"""1 while the clock process waits for the doorbell; the side that rings sets it to 0 first."""
CLOCK_MHZ = 24
"""MHz in force, 0 if the driver's default. The clock process writes this word and those up to 28."""
MEASURED_NUMBER = 25
"""The last schedule number whose measurement is complete."""
UNDO_FAILURES = 26
"""How often the clock or the power limit could not be put back so far."""
ALL_BACK = 27
"""As its last act, the clock process writes 1 if clock and power limit are put back for good, -1 if it has given up."""
REPLAYS_DIFFER = 28
"""1 once a CUDA graph was replayed where training has begun no step; from then on, no mark of the device counts."""

PROGRESS = 32
"""The last point of a step that the device has reached. Its lower 32 bits are written by the device."""
TURNS = 40
RECENT_TURNS = 16
"""For each of the last `RECENT_TURNS` steps, in the place `turn % RECENT_TURNS`, `TURNS` has the slot of its plan, or,
where each step has one clock, that clock in MHz. Written by training."""
PLAN, ONE_CLOCK = 1, 2
"""Values of `FOLLOWS`: each step has a plan, or each step has one clock."""

_NAMES = 64
_NAME_WORDS = 9  # length in bytes, then 64 bytes of UTF-8
MAX_NAMES = 128
RING = _NAMES + MAX_NAMES * _NAME_WORDS
RING_MARKS = 32_768
RING_MASK = RING_MARKS - 1
PLAN_SLOTS = 5
DEFAULT_SLOT = PLAN_SLOTS - 1
"""The last slot holds the plan at default clocks, for steps in which a rank has no turn."""
MIXED = PLAN_SLOTS
"""Added to the slot in `TURNS` where only half of the ranks follow the schedule: ranks then wait for others at other
points, so the times of such steps are learned apart."""
_PLANS = RING + 2 * RING_MARKS
_PLAN_CLOCKS = 65_536
_PLAN_WORDS = 2 + _PLAN_CLOCKS // 2  # its version, its length, then entries of 32 bits
_READINGS = _PLANS + PLAN_SLOTS * _PLAN_WORDS  # how many were written, then the last ones
_READING_SLOTS = 256  # ten come in a second
_DECIDED = _READINGS + 1 + 3 * _READING_SLOTS  # (step, MHz) of the last steps
_CHANGES = _DECIDED + 2 * RECENT_TURNS  # how many changes of the clock there were, then (time, MHz) of the last ones
_CHANGE_SLOTS = 64
WORDS = _CHANGES + 1 + 2 * _CHANGE_SLOTS
_VERSION = 0x70666F_0008

NO_NUMBER = -(1 << 62)
"""No schedule number: nothing measured yet."""

# A mark is two words: time.monotonic_ns(), and kind | value << 8.
MAX_STEP = (1 << 55) - 1
"""The highest step that fits into a mark."""
STEP_BEGIN = 1
"""The value is the step; the schedule number follows in a mark of kind `NUMBER`."""
NUMBER = 2
"""Continues STEP_BEGIN: the first word is the schedule number; the value is the step before which its result ends, or
0."""
STEP_END = 3
"""The step is complete; the value is a sum of `STRAYED` and `UNMARKED`, 0 if it can be measured."""
STRAYED = 1
"""The step did not run as scheduled."""
UNMARKED = 2
"""The step's instructions have no marks."""
BEGIN = 4
"""An instruction begins; the value is its name's place in the name table."""
END = 5
"""An instruction ends; the value is as for `BEGIN`."""
LAST_END = 6
"""Comes before STEP_END: the first word is the time at which the step's last instruction ended."""

# A point of a step is 32 bits: turn << 17 | position of the instruction << 1 | (1 at its end, 0 at its begin).
TURN_SHIFT = 17
TURN_MASK = (1 << 15) - 1
POINT_MASK = (1 << 17) - 1
REPLAYED = TURN_MASK
"""Stands for the turn in marks that were captured into a CUDA graph: each replay writes the same numbers."""
IDLE = POINT_MASK
"""The point after a step's last instruction, and in a step that does not run as scheduled: the default clock."""


def write_plan(words: memoryview, slot: int, clocks_mhz: Sequence[int], kinds: Sequence[int]) -> None:
    """Writes the clocks and the kinds of a step's instructions into one of the slots.

    Args:
        clocks_mhz: The clock of each instruction; 0 is the default clock.
        kinds: For each instruction, a number below 65,536 that is the same for the same work.
    """
    at = _PLANS + slot * _PLAN_WORDS
    entries = array("I", [mhz | kind << 16 for mhz, kind in zip(clocks_mhz, kinds, strict=True)])
    words[at + 1] = len(entries)
    words[at + 2 : at + _PLAN_WORDS].cast("B").cast("I")[: len(entries)] = entries
    words[at] += 1


def plan_version(words: memoryview, slot: int) -> int:
    return words[_PLANS + slot * _PLAN_WORDS]


def read_plan(words: memoryview, slot: int) -> tuple[list[int], list[int]]:
    at = _PLANS + slot * _PLAN_WORDS
    length = max(0, min(words[at + 1], _PLAN_CLOCKS))
    entries = words[at + 2 : at + _PLAN_WORDS].cast("B").cast("I")[:length].tolist()
    return [entry & 0xFFFF for entry in entries], [entry >> 16 for entry in entries]


class Reading(NamedTuple):
    """A reading of the energy counter, written by the clock process.

    Attributes:
        energy_uj: The counter, in uJ. It goes back where it is not known what was consumed.
        clock_mhz_us: The integral over time of the clock that was set, in MHz * us; the default counts as the highest.
    """

    time_ns: int
    energy_uj: int
    clock_mhz_us: int

    def plus(self, after: Reading, before: Reading) -> Reading:
        """Returns this sum of differences plus the difference between two more readings."""
        return Reading(*(own + new - old for own, new, old in zip(self, after, before, strict=True)))


def write_reading(words: memoryview, reading: Reading) -> None:
    """Writes a reading; training may be reading an earlier one, which stays for a while."""
    count = words[_READINGS]
    at = _READINGS + 1 + 3 * (count % _READING_SLOTS)
    words[at], words[at + 1], words[at + 2] = reading
    words[_READINGS] = count + 1


def newest_reading(words: memoryview) -> Reading | None:
    count = words[_READINGS]
    if count == 0:
        return None
    at = _READINGS + 1 + 3 * ((count - 1) % _READING_SLOTS)
    return Reading(words[at], words[at + 1], words[at + 2])


def energy_at(words: memoryview, t_ns: int) -> float:
    """Returns the energy counter at a monotonic time, in J, interpolated between readings; NaN if all are later."""
    count, after = words[_READINGS], None
    for number in range(count - 1, max(-1, count - _READING_SLOTS), -1):  # the oldest may be written over meanwhile
        at = _READINGS + 1 + 3 * (number % _READING_SLOTS)
        time_ns, energy_uj = words[at], words[at + 1]
        if time_ns <= t_ns:
            if after is None or after[0] <= time_ns:
                return energy_uj / 1e6
            return (energy_uj + (after[1] - energy_uj) * (t_ns - time_ns) / (after[0] - time_ns)) / 1e6
        after = time_ns, energy_uj
    return math.nan


def write_change(words: memoryview, t_ns: int, mhz: int) -> None:
    """Writes that the clock was set to `mhz`, 0 for the default clock, at a monotonic time."""
    count = words[_CHANGES]
    at = _CHANGES + 1 + 2 * (count % _CHANGE_SLOTS)
    words[at], words[at + 1] = t_ns, mhz
    words[_CHANGES] = count + 1


def mean_clock_mhz(words: memoryview, begin_ns: int, end_ns: int, top_mhz: int) -> float:
    """Returns the mean, between two monotonic times, of the clock that was set, in MHz; NaN if not known any more."""
    count, sum_mhz_ns, until_ns = words[_CHANGES], 0, end_ns
    for number in range(count - 1, max(-1, count - _CHANGE_SLOTS), -1):
        at = _CHANGES + 1 + 2 * (number % _CHANGE_SLOTS)
        since_ns = max(words[at], begin_ns)
        if since_ns < until_ns:
            sum_mhz_ns += (words[at + 1] or top_mhz) * (until_ns - since_ns)
            until_ns = since_ns
        if until_ns == begin_ns:
            break
    if until_ns > begin_ns and count >= _CHANGE_SLOTS:
        return math.nan
    return (sum_mhz_ns + top_mhz * (until_ns - begin_ns)) / max(1, end_ns - begin_ns)


def write_decided(words: memoryview, step: int, mhz: int) -> None:
    """Writes the clock that was decided for a step from its loads; 0 MHz is the default clock."""
    at = _DECIDED + 2 * (step % RECENT_TURNS)
    words[at] = -1
    words[at + 1] = mhz
    words[at] = step


def decided_mhz(words: memoryview, step: int) -> int:
    """Returns the clock of a step in MHz; 0 for the default clock, and while the clock is not known."""
    at = _DECIDED + 2 * (step % RECENT_TURNS)
    if words[at] != step:
        return 0
    mhz = words[at + 1]
    return mhz if words[at] == step else 0  # not if it was written over meanwhile


class SharedPage:
    """One mapping of the page.

    Args:
        fd: The memory, which this object closes.

    Raises:
        ValueError: The memory is no such page, or a page of another release.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._map = mmap.mmap(fd, WORDS * 8)
        self.words = memoryview(self._map).cast("q")
        if self.words[MAGIC] != _VERSION:
            self.close()
            raise ValueError("the shared page is not of this release of pfo-fs")
        self._places: dict[str, int] = {}

    @classmethod
    def create(cls) -> SharedPage:
        """Makes a new page that requests no clock."""
        fd = open_memory("pfo-fs-page", WORDS * 8)
        os.pwrite(fd, _VERSION.to_bytes(8, "little"), MAGIC * 8)
        os.pwrite(fd, IDLE.to_bytes(8, "little"), PROGRESS * 8)
        os.pwrite(fd, IDLE.to_bytes(8, "little"), LAUNCHED * 8)
        os.pwrite(fd, (-1).to_bytes(8, "little", signed=True), LEAD_US * 8)
        os.pwrite(fd, NO_NUMBER.to_bytes(8, "little", signed=True), MEASURED_NUMBER * 8)
        os.pwrite(fd, (-1).to_bytes(8, "little", signed=True) * (2 * RECENT_TURNS), 8 * _DECIDED)
        return cls(fd)

    def close(self) -> None:
        """Unmaps the page, of whose words no slice may exist any more; a second call does nothing."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
        self.words.release()
        self._map.close()

    # ---- the name table: appended to by training, read by the clock process

    def name_id(self, name: str) -> int:
        """Returns the place of `name` in the table, adding it if it is new; if the table is full, its last place."""
        place = self._places.get(name)
        if place is not None:
            return place
        index = len(self._places)
        if index == MAX_NAMES:
            return MAX_NAMES - 1
        text = ("other" if index == MAX_NAMES - 1 else name).encode("utf-8", "replace")[:64]
        at = _NAMES + index * _NAME_WORDS
        self.words[at] = len(text)
        self.words[at + 1 : at + _NAME_WORDS].cast("B")[: len(text)] = text
        self._places[name] = index
        self.words[NAME_COUNT] = len(self._places)
        return index

    def name(self, index: int) -> str:
        """Returns the name at a place of the table."""
        if not 0 <= index < min(self.words[NAME_COUNT], MAX_NAMES):
            return "unknown"
        at = _NAMES + index * _NAME_WORDS
        text = bytes(self.words[at + 1 : at + _NAME_WORDS].cast("B"))
        return text[: max(0, min(self.words[at], 64))].decode("utf-8", "replace")


class MarkReader:
    """The clock process's side of the ring of marks."""

    def __init__(self, words: memoryview) -> None:
        self._words = words
        self._tail = 0
        self._seen_head = 0

    def read(self, *, everything: bool = False) -> list[tuple[int, int]] | None:
        """Reads the marks that were there at the previous call.

        Args:
            everything: Read all marks; only when training has stopped writing.

        Returns:
            (first word, code) of each mark. None if training was faster than the reader and marks are lost.
        """
        words = self._words
        head = words[HEAD]
        tail = self._tail
        upto = head if everything else self._seen_head
        self._seen_head = head
        self._tail = upto
        if upto == tail:
            return []
        if head - tail >= RING_MARKS:  # training may be writing over the mark at `tail` just now
            self._tail = head
            return None
        start, end = tail & RING_MASK, upto & RING_MASK
        pieces = [(start, end)] if start < end else [(start, RING_MARKS), (0, end)]
        flat: list[int] = []
        for first, last in pieces:
            flat += words[RING + 2 * first : RING + 2 * last].tolist()
        if words[HEAD] - tail >= RING_MARKS:  # training has written over marks while they were copied
            self._tail = self._seen_head = words[HEAD]
            return None
        return list(zip(flat[::2], flat[1::2], strict=True))
