"""How long a change of the clock takes on this GPU: the driver's call, and then the time until the clock acts.

The duration of a call is measured at each call. When the clock acts cannot be read from the driver; it is learned from
the instruction that runs after the change. If the clock comes `late` seconds after the boundary, this instruction
takes `late * (1 - time at its clock / time at the clock before)` longer (or shorter, for a lower clock), and a change
that was requested early enough makes no difference. So the duration against the lead (how long before the boundary the
change was requested) is a line that bends at the latency and is flat behind it: `bend_of` finds the bend.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Hashable, Mapping, Sequence
from statistics import median

_CALLS = 15
_FIRST_CALL_NS = 5_000_000
"""Assumed duration of a call before one was made; published medians are 4.1 and 5.2 ms."""
_FIRST_SETTLE_NS = 5_000_000
_TRIED_NS = tuple(ms * 1_000_000 for ms in (0, 4, 8, 16, 32, 64, 128))
"""The latency of an unknown clock is searched upwards, with these times from the return of the call until it acts."""
_STEPS = 2
"""Each of them is tried in this many steps."""
_KEPT = 32
"""Number of samples kept of one instruction."""
_MOST_KEYS = 8
"""Number of instructions per clock whose samples are kept."""
_PER_STEP = 2
"""Latencies that are computed after one step: each takes some milliseconds."""
_GRID_NS = 1_000_000
_WORTH = 0.5
"""A bend that explains a smaller share of the durations' variance is noise."""
_FLAT = 0.8
"""The bend must be below this share of the longest lead, so that durations are flat behind it."""
Sample = tuple[int, int]
"""The lead with which a change was requested, and the duration of the instruction after it, both in ns."""


class SwitchLatency:
    """The learned times of one GPU.

    Args:
        settle_ns: Known times from the return of a call until a clock (MHz) acts, as from `pfo-fs doctor --switching`.
        call_ns: The known duration of a call.
    """

    def __init__(self, settle_ns: Mapping[int, int] | None = None, call_ns: int = _FIRST_CALL_NS) -> None:
        self._settle_ns = dict(settle_ns or {})
        self._calls: deque[int] = deque([call_ns], maxlen=_CALLS)
        self._searches: dict[int, _Search] = {}
        self.call_ns = call_ns

    def called(self, took_ns: int) -> None:
        """Notes the duration of a call."""
        self._calls.append(took_ns)
        self.call_ns = round(median(self._calls))

    def settle_ns(self, mhz: int) -> int:
        """Returns the time from the return of a call until the clock acts; while that is unknown, the one tried now."""
        if mhz in self._settle_ns:
            return self._settle_ns[mhz]
        search = self._searches.get(mhz)
        return _FIRST_SETTLE_NS if search is None else search.tried_ns

    def lead_ns(self, mhz: int) -> int:
        """Returns the time from the request of a clock until it acts."""
        return self.call_ns + self.settle_ns(mhz)

    @property
    def learned(self) -> Mapping[int, int]:
        """For each clock in MHz whose latency is known, the time from the return of a call until it acts, in ns."""
        return self._settle_ns

    def ran(self, mhz: int, key: Hashable, lead_ns: int, took_ns: int) -> None:
        """Notes how long an instruction took whose clock was requested `lead_ns` before it began."""
        if mhz not in self._settle_ns:
            self._searches.setdefault(mhz, _Search()).add(key, (lead_ns, took_ns))

    def step_ended(self) -> None:
        """Goes on with the searches."""
        computed = 0
        for mhz, search in list(self._searches.items()):
            if not search.step_ended() or computed == _PER_STEP:
                continue
            computed += 1
            settle_ns = search.result_ns(self.call_ns)
            if settle_ns is not None:
                self._settle_ns[mhz] = settle_ns
                del self._searches[mhz]


class _Search:
    """The search for the latency of one clock."""

    def __init__(self) -> None:
        self._samples: dict[Hashable, deque[Sample]] = {}
        self._steps = 0

    @property
    def tried_ns(self) -> int:
        return _TRIED_NS[min(self._steps // _STEPS, len(_TRIED_NS) - 1)]

    def add(self, key: Hashable, sample: Sample) -> None:
        if key in self._samples or len(self._samples) < _MOST_KEYS:
            self._samples.setdefault(key, deque(maxlen=_KEPT)).append(sample)

    def step_ended(self) -> bool:
        """Counts a step; returns whether there may be a result."""
        self._steps += 1
        return self._steps >= 3 * _STEPS and self._steps % _STEPS == 0

    def result_ns(self, call_ns: int) -> int | None:
        """Returns the time from the return of a call until the clock acts; None if more must be tried."""
        bend_ns = bend_of(self._samples.values())
        if bend_ns is not None:
            return max(0, bend_ns - call_ns)
        # Clocks so near to each other that no bend shows in the end: then it does not matter much.
        return _FIRST_SETTLE_NS if self._steps >= _STEPS * len(_TRIED_NS) + 2 else None


def bend_of(samples: Collection[Sequence[Sample]]) -> int | None:
    """Returns the lead in ns from which on durations do not depend on it any more; None if the samples do not show it.

    Durations of one instruction are a line of max(0, bend - lead), with a slope and a constant of its own; the bend is
    common to all. It is found by trying (least squares for each one tried).

    Args:
        samples: For each instruction, its samples.
    """
    longest_ns = max((lead_ns for each in samples for lead_ns, _ in each), default=0)
    flat = sum(_squares([0.0] * len(each), each) for each in samples)
    best_ns, least = 0, flat
    for bend_ns in range(0, longest_ns, _GRID_NS):
        squares = sum(_squares([max(0, bend_ns - lead_ns) / 1e6 for lead_ns, _ in each], each) for each in samples)
        if squares < least:
            best_ns, least = bend_ns, squares
    if not flat or least > (1 - _WORTH) * flat or best_ns > _FLAT * longest_ns:
        return None
    return best_ns


def _squares(xs: Sequence[float], samples: Sequence[Sample]) -> float:
    """The sum of squares of what a line through (x, duration in ms) leaves."""
    count = len(samples)
    ys = [took_ns / 1e6 for _, took_ns in samples]
    mean_x, mean_y = sum(xs) / count, sum(ys) / count
    of_x = sum((x - mean_x) * (x - mean_x) for x in xs)
    of_y = sum((y - mean_y) * (y - mean_y) for y in ys)
    both = sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True))
    return of_y - both * both / of_x if of_x else of_y
