"""How long a change of the clock takes on this GPU: the driver's call, and then the time until the clock acts.

The duration of a call is measured at each call. When the clock acts cannot be read from the driver; it is learned from
the instruction that runs after the change. If the clock comes `late` seconds after the boundary, this instruction takes
`late * (1 - time at its clock / time at the clock before)` longer (or shorter, for a lower clock), and a change that was
requested early enough makes no difference. So the duration against the lead (how long before the boundary the change
was requested) is a line that bends at the latency and is flat behind it: `bend_of` finds the bend.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from statistics import fmean, median

_CALLS = 15
_FIRST_CALL_NS = 5_000_000
"""Assumed duration of a call before one was made: the median that PHYSICAL measurements of two nodes found."""
_FIRST_SETTLE_NS = 5_000_000
_LONGEST_SETTLE_NS = 200_000_000
_SAMPLES = 24
"""A latency is computed from this many changes of one instruction."""
_GRID_NS = 1_000_000
_WORTH = 0.5
"""The bend must explain this share of the durations' variance."""
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
        self._known = bool(settle_ns)
        self._calls: deque[int] = deque([call_ns], maxlen=_CALLS)
        self._samples: dict[tuple[int, int], list[Sample]] = {}
        self.call_ns = call_ns

    def called(self, took_ns: int) -> None:
        """Notes the duration of a call."""
        self._calls.append(took_ns)
        self.call_ns = round(median(self._calls))

    def settle_ns(self, mhz: int) -> int:
        """Returns the time from the return of a call until the clock acts; of an unknown clock, the nearest one's."""
        if mhz in self._settle_ns:
            return self._settle_ns[mhz]
        if not self._settle_ns:
            return _FIRST_SETTLE_NS
        known = [other for other in self._settle_ns if (other == 0) == (mhz == 0)] or list(self._settle_ns)
        return self._settle_ns[min(known, key=lambda other: abs(other - mhz))]

    def lead_ns(self, mhz: int) -> int:
        """Returns the time from the request of a clock until it acts."""
        return self.call_ns + self.settle_ns(mhz)

    @property
    def learned(self) -> Mapping[int, int]:
        """For each clock in MHz whose latency is known, the time from the return of a call until it acts, in ns."""
        return self._settle_ns
