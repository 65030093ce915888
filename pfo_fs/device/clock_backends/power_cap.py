"""Power limits in place of clocks, for sites that permit only limits: a limit holds the GPU near the wanted clock.

A limit holds for the average: bursts of 20 to 500 ms go beyond it. So the clock is only near the one that was asked
for, comes late, and is changed rarely. The clock process reports that clocks do not follow the device, so that each
plan has one clock per rank. The job's own measurements tell what that saves and costs: a limit that leads to another
clock only makes a worse plan.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from pfo_fs.device.clocks.undo_note import SAME_W, limit_note
from pfo_fs.device.gpu.driver_errors import patiently
from pfo_fs.device.gpu.interface import POWER_CAP, POWER_LIMIT, ClockSeen, Gpu, ReadThrough
from pfo_fs.errors import DeviceError

if TYPE_CHECKING:
    from pfo_fs.device.metering.instruction_power import Power

_AT_ANY_CLOCK = 0.2
"""Share of the power that stays at any clock: a GPU that waits draws 84 of 475 W (A100), 70 of 299 W (A40)."""
_SURE = 0.1
"""A measured power whose relative error is larger does not count."""


class PowerCapGpu(ReadThrough):
    """A GPU whose clocks are never locked (`Gpu`).

    The limit for a clock follows from the power that the job's instructions draw at the default clock, as it was first
    measured; until then, the limit before the job counts as that power. A fifth of this power counts as the same at
    any clock, the rest as proportional to the clock. Power falls faster on published GPUs, so that clocks are rather
    too high, and steps take no longer than expected. If a GPU is at its power limit anyway, clocks are up to 10 % too
    low. No limit is above the one that was in force before.

    The limit that was in force before is kept only in the note for the next process. So each process can put it back,
    and a limit that another program has set meanwhile stays.

    Args:
        gpu: The GPU that is read, and whose power limit is set.
    """

    clock_backend = POWER_CAP

    def __init__(self, gpu: Gpu) -> None:
        super().__init__(gpu)
        self.set_power_limit_w, self.clock_seen = gpu.set_power_limit_w, self._clock_seen
        self._note = limit_note(gpu.uuid)
        self._full_w: float | None = None

    def learn(self, powers: Iterable[Power]) -> None:
        """Takes the power at the default clock from a result, unless it is known."""
        top_mhz = max(self.supported_clocks_mhz(), default=0)
        full = [power for power in powers if power.instruction and power.frequency in (0, top_mhz)]
        if self._full_w is None and full and all(power.error <= _SURE * power.power for power in full):
            self._full_w = sum(power.power * power.seconds for power in full) / sum(power.seconds for power in full)

    def _clock_seen(self) -> ClockSeen:
        """Returns no clock, since none was set, and does not name the limit, which holds the clock back on purpose."""
        seen = self._gpu.clock_seen()
        held_back = ", ".join(reason for reason in seen.held_back.split(", ") if reason != POWER_LIMIT)
        return ClockSeen(0, held_back, seen.is_idle)

    def try_reset(self) -> str:
        """Sets the limit in force once more, to try the permission; returns why clocks cannot be set, or ''."""
        try:
            patiently(lambda: self.set_power_limit_w(self.power_limit_w()))
        except DeviceError as error:
            return str(error)
        return "" if self.supported_clocks_mhz() else "the GPU offers no clocks"

    def lock_clock_mhz(self, mhz: int) -> None:
        """Sets the limit for a clock, but first notes the limit before: if this process is killed, the new one stays.

        Raises:
            DeviceError: The note cannot be written, or the limit is refused.
        """
        before_w, now_w = self._note.limit_before_w(self), self.power_limit_w()
        top_mhz, lowest_w = max(self.supported_clocks_mhz()), self.power_limit_range_w()[0]
        share = _AT_ANY_CLOCK + (1 - _AT_ANY_CLOCK) * mhz / top_mhz
        limit_w = max(lowest_w, share * (self._full_w or before_w))
        if mhz >= top_mhz or limit_w > before_w:
            limit_w = before_w
        if abs(limit_w - now_w) > SAME_W:
            if not self._note.write(before_w, limit_w, [now_w]):
                raise DeviceError("no note of the power limit can be written; set PFO_FS_RUN_DIR to a folder for it")
            self.set_power_limit_w(limit_w)

    def reset_clocks(self) -> None:
        """Sets the limit that was in force before."""
        before_w = self._note.limit_before_w(self)
        if abs(before_w - self.power_limit_w()) > SAME_W:
            self.set_power_limit_w(before_w)

    def shows_clock(self, mhz: int) -> bool | None:
        """Returns whether a limit that stands for a clock is in force; if none is, removes the note."""
        if abs(self._note.limit_before_w(self) - self.power_limit_w()) > SAME_W:
            return True
        self._note.remove()
        return False
