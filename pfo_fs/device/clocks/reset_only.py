"""The clock process that is started after one has died: it puts back what that one has left, and ends."""

from __future__ import annotations

from typing import Any

from pfo_fs.device.clocks.undo import UNDO_FOR_S, clock_undo, finish, limit_undo, take_over
from pfo_fs.device.clocks.undo_note import limit_note
from pfo_fs.device.gpu.pauses import patiently
from pfo_fs.device.gpu.spec import open_gpu
from pfo_fs.errors import DeviceError


def reset_only(given: dict[str, Any]) -> int:
    """Puts back what a process that has died has left; returns the exit status, 1 if it could not."""
    backend = given.get("clock_backend", "auto")
    try:
        gpu = patiently(lambda: open_gpu(given["spec"], backend), attempts=12, first_s=0.1, within_s=UNDO_FOR_S)
    except DeviceError:
        return 1
    clock, limit = clock_undo(gpu), limit_undo(gpu)
    is_reset = not given["leave_clocks"] and not gpu.why_clocks_stay()  # chooses a way that works
    if not given["leave_clocks"] and not is_reset:
        clock.owe(0.0)
    is_noted = limit_note(gpu.uuid).left() is not None
    take_over(gpu, clock, limit, clock_is_reset=is_reset)
    if given["power_limit_w"] is not None and not is_noted:
        limit.owe(0.0, float(given["power_limit_w"]))
    return 0 if finish((clock, limit), UNDO_FOR_S) else 1
