"""Makes the kernel run the clock process as soon as it is woken, also on a machine whose processors are busy.

The clock process runs for some 30 us at a time, but a clock that is set late is useless. By default Linux lets the
process that occupies the processor finish its slice first (measured, 2 cores, 2 other busy processes: 8 to 35 ms until
a clock is set, 99th percentile). A short slice of its own, and a better nice value, for it and for its session's
autogroup, reduce that to 0.1 to 1 ms. Each step is tried and may be refused: users who may set clocks mostly have the
permission, and without it clocks are only set later. Real-time scheduling got 0.1 ms, but is not used: with it, a
driver that hangs would block a whole processor.
"""

from __future__ import annotations

import ctypes
import os
import struct
from contextlib import suppress

_NICE = -10
_SLICE_NS = 100_000
_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}


def raise_priority() -> None:
    """Asks for a short slice (Linux 6.12 and later) and a better nice value; ignores refusals."""
    number = _SCHED_SETATTR.get(os.uname().machine)
    if number is not None:
        nice = os.getpriority(os.PRIO_PROCESS, 0)
        # struct sched_attr: size, policy, flags, nice, priority, runtime (the slice), deadline, period, clamps
        attributes = struct.pack("=IIQiIQQQII", 56, os.SCHED_OTHER, 0, nice, 0, _SLICE_NS, 0, 0, 0, 0)
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).syscall(number, 0, attributes, 0)
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, _NICE)
    with suppress(OSError), open("/proc/self/autogroup", "w") as file:
        file.write(str(_NICE))
