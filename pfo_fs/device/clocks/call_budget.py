"""How many calls the clock process of one GPU may make: the driver of a node makes one call at a time for all GPUs.

Calls at a high rate also delay NCCL (NVIDIA/nccl#1551: at 20 per second, whatever the clock). A change to a lower clock
needs a change back, so it is made only while there is room for both; a change to a higher clock is always made.
"""

from __future__ import annotations

_BURST = 8
"""Most calls that may be saved up, per GPU."""
BUSY_SHARE = 0.8
"""The driver may be busy with our calls for this share of the time."""


class CallBudget:
    """The calls of one GPU.

    Args:
        calls_per_s: Most calls per second of all GPUs of the node; None: as many as take `BUSY_SHARE` of the time.
    """

    def __init__(self, calls_per_s: float | None = None) -> None:
        self._calls_per_s = calls_per_s
        self._saved = float(_BURST)
        self._counted_ns = 0

    def allows_down(self, now_ns: int, call_ns: int, gpus: int) -> bool:
        """Returns whether the clock may go down, and up again later.

        Args:
            now_ns: The time.
            call_ns: Duration of a call.
            gpus: Number of GPUs of the node whose clocks are set.
        """
        rate = self._calls_per_s
        if rate is None:
            rate = BUSY_SHARE * 1e9 / max(call_ns, 1)
        passed_ns = now_ns - self._counted_ns
        self._counted_ns = now_ns
        self._saved = min(_BURST, self._saved + rate / gpus * passed_ns / 1e9)
        return self._saved >= 2

    def called(self) -> None:
        """Notes a call."""
        self._saved -= 1
