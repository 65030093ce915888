"""What a clock follower needs to know of how long changes of the clock take, and what it tells of instructions."""

from __future__ import annotations

from typing import Protocol

from pfo_fs.device.clocks.switch_latency import Ran


class Leads(Protocol):
    """How long before it acts a change must be requested."""

    @property
    def call_ns(self) -> int:
        """How long one call of the driver takes."""

    @property
    def queue_ns(self) -> int:
        """How long a call may have to wait for those of other GPUs of the node."""

    def allows_down(self, now_ns: int) -> bool:
        """Returns whether there is room for a call now and another one later."""

    def lead_ns(self, mhz: int, *, up: bool = False) -> int:
        """Returns the time from the request of this clock, in MHz, until it acts; 0 MHz is the default clock.

        Where it is unknown, that of a slow clock if the change is `up`, which then comes early.
        """

    def usual_lead_ns(self, mhz: int) -> int:
        """Returns the most likely time from the request of this clock until it acts."""

    def explores(self, mhz: int) -> bool:
        """Returns whether this clock is to be requested late, so that its latency shows."""

    def knows(self, mhz: int) -> bool:
        """Returns whether the latency of this clock is known."""

    def settled_ns(self, mhz: int, call: int) -> int:
        """Returns the time from the request of a clock, by this call, after which it has surely acted."""

    def ran_steadily(self, ran: Ran) -> None:
        """Notes an instruction that ran at its clock from its begin to its end."""

    @property
    def calls_made(self) -> int:
        """Number of calls so far."""

    def ran_first(self, ran: Ran, from_mhz: int, lead_ns: int, call: int) -> None:
        """Notes the first instruction after a change of the clock."""

    def ran_before(self, ran: Ran, from_mhz: int, lead_ns: int, call: int) -> None:
        """Notes an instruction in which a clock was requested that is needed after it."""

    def ran_on(self, ran: Ran, lead_ns: int) -> None:
        """Notes a further instruction at the same clock."""

    def tried(self, mhz: int) -> None:
        """Notes that an instruction has run after a change to this clock."""

    def disturbed(self) -> None:
        """Notes that the clock may have changed again in the instruction after `ran_first`."""
