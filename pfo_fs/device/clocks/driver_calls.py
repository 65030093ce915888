"""The calls that set clocks: how long they take, how long they wait for each other, and how many may be made.

The driver of a node makes one call at a time for all its GPUs. Calls at a high rate also delay NCCL (NVIDIA/nccl#1551:
at 20 per second, whatever the clock). A change to a lower clock needs a change back, so it is made only while there is
room for both; a change to a higher clock is always made.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

FIRST_CALL_NS = 5_000_000
"""Assumed duration of a call before one was made; published medians are 4.1 and 5.2 ms."""
BUSY_SHARE = 0.8
"""The driver may be busy with our calls for this share of the time."""
_BURST = 8
"""Most calls that may be saved up, per GPU."""
_CALLS, _WAITS = 15, 64
"""The last durations of calls, of which the median counts, and the last waits, of which nine of ten are no longer."""


class DriverCalls:
    """The calls of one GPU.

    Args:
        call_ns: The known duration of a call.
        calls_per_s: Most calls per second of all GPUs of the node; None: as many as take `BUSY_SHARE` of the time.

    Attributes:
        call_ns: Median duration of a call.
        queue_ns: How long a call may have to wait for those of other GPUs of the node.
        made: Number of calls so far.
        gpus: Number of GPUs of the node whose clocks are set.
        calls_per_s: The same.
    """

    def __init__(self, call_ns: int = FIRST_CALL_NS, calls_per_s: float | None = None) -> None:
        self.call_ns = call_ns
        self.queue_ns = 0
        self.made = 0
        self.gpus = 1
        self.calls_per_s = calls_per_s
        self._took_ns: deque[int] = deque(maxlen=_CALLS)
        self._waited_ns: deque[int] = deque(maxlen=_WAITS)
        self._saved = float(_BURST)
        self._counted_ns = 0

    def called(self, took_ns: int, waited_ns: int = 0) -> None:
        """Notes a call: its duration, and how long it waited before for calls of other GPUs."""
        self.made += 1
        self._saved -= 1
        self._took_ns.append(took_ns)
        self._waited_ns.append(waited_ns)
        self.call_ns = _share_of(self._took_ns, 0.5)
        self.queue_ns = _share_of(self._waited_ns, 0.9)

    def allows_down(self, now_ns: int) -> bool:
        """Returns whether the clock may go down, and up again later."""
        rate = self.calls_per_s
        if rate is None:
            rate = BUSY_SHARE * 1e9 / max(self.call_ns, 1)
        passed_ns = now_ns - self._counted_ns
        self._counted_ns = now_ns
        self._saved = min(_BURST, self._saved + rate / self.gpus * passed_ns / 1e9)
        return self._saved >= 2


def _share_of(values: Iterable[int], share: float) -> int:
    """Returns the value below which this share of them lies. `statistics` would make the clock process start later."""
    ordered = sorted(values)
    return ordered[int(len(ordered) * share)]
