"""Reads back the clock that a GPU shows, and notices if something else decides it.

A call that sets a clock can return success without an effect, because workload power profiles, DCGM, EAR, another job
or the driver's own arbitration decide, too. A clock above all that were set lately is a sign of that. So is a clock
below all of them on a busy GPU, unless power or heat holds it back. Measured times and powers contain the effect of
such a limit, so clocks are still set, and the status names it.
"""

import os
from collections import deque
from contextlib import suppress
from pathlib import Path

from pfo_fs.device.gpu.interface import Gpu
from pfo_fs.errors import DeviceError, DevicePermissionError, NotOffered

MOST_CONTRADICTIONS = 5
"""After five readings in a row that contradict what was set, no clock is set for a minute."""
_ROUNDS = 3
"""When that has happened three times, with no reading in between that agrees, no clock is set any more."""
_SETTLED_NS = 500_000_000
"""A reading may show any clock of the last half second: published latencies are no longer than that."""
_STEPS_APART, _LEAST_APART_NS, _MOST_APART_NS, _SOON_NS = 4, 250_000_000, 2_000_000_000, 100_000_000
"""The clock is read every four steps, but 0.25 to 2 s after the last time; after a contradiction, in 0.1 s."""
_ABOVE_MHZ, _BELOW_SHARE = 30, 0.9
"""From this share of the lowest set clock to this much above the highest, a clock is as set: boost depends on heat."""
_REACHED_SHARE = 0.75
"""Boards offer clocks that they never reach: a GPU need only reach 75 % of the highest, and each that it has shown."""

LOOKS_LIKE = {
    "profile": "a workload power profile",
    "smoothing": "power smoothing, whose floor keeps the GPU busy",
    "dcgm": "DCGM (nv-hostengine runs here)",
    "ear": "EAR (eard runs here)",
    "job": "another job on this GPU",
}
_PROGRAMS = {"nv-hostengine": "dcgm", "eard": "ear"}


def other_setters(gpu: Gpu, proc: Path = Path("/proc")) -> list[str]:
    """Returns what else may decide a GPU's clock, as keys of `LOOKS_LIKE`: what the GPU shows, and running programs."""
    found = set(gpu.other_setters())
    for name in filter(str.isdecimal, os.listdir(proc)):
        with suppress(OSError):
            found.add(_PROGRAMS.get((proc / name / "comm").read_text("utf-8", "replace").strip(), ""))
    return [name for name in LOOKS_LIKE if name in found]


class ReadBack:
    """The clocks that were set on a GPU, and those that it shows; `top_mhz` is the highest one on offer.

    Attributes:
        held_back: What holds the clock below the one that was set, at the last reading.
        overruled: A text on what overrules the set clock; '' if that was not noticed, or a reading has agreed since.
    """

    def __init__(self, gpu: Gpu, top_mhz: int) -> None:
        self._gpu = gpu
        self._set = deque([(0, 0)], maxlen=4096)  # (monotonic ns, MHz) of the last clocks
        self._reached_mhz = _REACHED_SHARE * top_mhz
        self._contradictions = self._rounds = self._due_ns = 0
        self.held_back = self.overruled = ""

    def clock_set(self, t_ns: int, mhz: int) -> None:
        self._set.append((t_ns, mhz))

    def look(self, now_ns: int, step_s: float) -> DeviceError | None:
        """Reads the clock if that is due; returns why no clock is to be set now, if there is a new reason."""
        if now_ns < self._due_ns:
            return None
        self._due_ns = now_ns + min(max(_LEAST_APART_NS, round(_STEPS_APART * step_s * 1e9)), _MOST_APART_NS)
        seen = self._gpu.clock_seen()
        self.held_back = seen.held_back
        while len(self._set) > 1 and self._set[1][0] <= now_ns - _SETTLED_NS:
            self._set.popleft()
        self._reached_mhz = max(self._reached_mhz, seen.mhz)
        clocks_mhz = [mhz for _, mhz in self._set]
        lowest_mhz = min(clocks_mhz)
        is_below = seen.mhz < _BELOW_SHARE * lowest_mhz
        if not lowest_mhz or not seen.mhz:
            return None
        is_explained = seen.held_back or seen.is_idle or seen.is_limited or lowest_mhz > self._reached_mhz
        if is_below and is_explained:
            self._contradictions = 0  # the driver does not name its reason at every moment
            return None
        if not is_below and seen.mhz <= max(clocks_mhz) + _ABOVE_MHZ:
            self._contradictions = self._rounds = 0
            self.overruled = ""
            return None
        self._contradictions += 1
        self._due_ns = now_ns + _SOON_NS
        return self._overruled(seen.mhz, clocks_mhz[-1]) if self._contradictions >= MOST_CONTRADICTIONS else None

    def _overruled(self, seen_mhz: int, set_mhz: int) -> DeviceError:
        self._contradictions, self._rounds = 0, self._rounds + 1
        found = [LOOKS_LIKE[name] for name in other_setters(self._gpu)]
        who = f"it looks like {' or '.join(found)}" if found else "another program or the driver decides it"
        self.overruled = f"the GPU runs at {seen_mhz} MHz although {set_mhz} MHz were set: {who}; see `pfo-fs doctor`"
        kind = NotOffered if self._rounds >= _ROUNDS else DevicePermissionError
        return kind(self.overruled)
