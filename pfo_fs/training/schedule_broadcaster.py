"""Broadcasts schedules from rank 0 to all ranks by `torch.distributed`, where no daemon schedules.

No step waits while all ranks run. At an agreed step, all ranks exchange a header (an all-reduce in the background, by
gloo) that says whether a schedule follows. Some steps later, when the header has long arrived, each rank reads it; if a
schedule follows, its broadcast starts. Every rank knows the steps at which this happens, so all ranks issue the
collectives in the same order, and a new schedule comes into force at the same step on all of them.

The header is an all-reduce and not a broadcast, because in a broadcast the other ranks do not notice that one rank has
failed. In an all-reduce, all others notice a missing rank at the next header. A rank that fails closes its connections,
which the others see when they read the next header; if it hangs instead, the others wait once, for at most `_WAIT_S`,
and then count the broadcaster as lost.
"""

from __future__ import annotations

import logging
import math
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import ProcessGroup, Work

log = logging.getLogger(__name__)

_FLIGHT_TIME_S = 0.5
"""Between the start of a collective and the reading of its result lie enough steps to last this long, in s."""
_MAX_FLIGHT_STEPS = 1000
_WAIT_S = 60.0
"""A rank that has sent nothing for this time, in s, counts as gone. Ranks in the same step send much sooner."""
_MAX_PACKET_BYTES = 64 * 1024 * 1024


class ScheduleBroadcaster:
    """Broadcasts packets from rank 0, in step with training.

    Making a broadcaster is a collective call of all ranks. `step_begin` must be called by every rank at every step.
    """

    def __init__(self, rank: int) -> None:
        import torch
        import torch.distributed as dist

        self.lost = False
        self._torch, self._dist = torch, dist
        self._rank = rank
        self._group: ProcessGroup = dist.new_group(backend="gloo", timeout=timedelta(seconds=_WAIT_S))
        self._first: bytes | None = None
        self._outbox: bytes | None = None
        self._phase = "announce"
        self._at_step = 1
        self._flight_steps = 1
        self._header: Tensor = None
        self._payload: Tensor = None
        self._work: Work = None

    def send_first(self, packet: bytes | None) -> None:
        """Sends rank 0's packet, or None, to all ranks at once; collective and blocking, for start-up only."""
        box = [packet]
        self._dist.broadcast_object_list(box, src=0, group=self._group, device=self._torch.device("cpu"))
        self._first = box[0]

    def offer(self, packet: bytes) -> None:
        """On rank 0: sets the packet to send next, in place of a packet that is not under way yet."""
        if len(packet) <= _MAX_PACKET_BYTES:
            self._outbox = packet
        else:
            log.error("a schedule of %d MiB is too large for torch.distributed; use a daemon", len(packet) >> 20)

    def step_begin(self, step: int, iter_time_s: float | None) -> bytes | None:
        """Does what is due at this step; `iter_time_s` counts on rank 0 only.

        Returns:
            The packet that comes into force with this step, on all ranks; None for most steps.
        """
        if step < self._at_step or self.lost:
            first, self._first = self._first, None
            return first
        try:
            return self._advance(step, iter_time_s)
        except RuntimeError as error:
            log.warning("rank %d: the exchange of schedules has failed: %s", self._rank, error)
            self._leave()
            return None

    def _advance(self, step: int, iter_time_s: float | None) -> bytes | None:
        packet = None
        if self._phase == "announce":
            self._exchange_header(iter_time_s)
            self._phase = "header"
        elif self._phase == "header":
            self._wait()
            size, self._flight_steps = int(self._header[0]), int(self._header[1])
            self._phase = "announce"
            if size:
                self._send_payload(size)
                self._phase = "payload"
        else:
            self._wait()
            packet = self._payload.numpy().tobytes()
            self._payload = None
            self._phase = "announce"
        self._at_step = step + self._flight_steps
        return packet

    def _exchange_header(self, iter_time_s: float | None) -> None:
        """Starts the all-reduce of (bytes that follow, steps until the next action); all ranks but 0 add zeros."""
        self._header = self._torch.zeros(2, dtype=self._torch.int64)
        if self._rank == 0:
            flight = math.ceil(_FLIGHT_TIME_S / iter_time_s) if iter_time_s else 1
            self._header[0] = len(self._outbox or b"")
            self._header[1] = min(max(flight, 1), _MAX_FLIGHT_STEPS)
            self._payload, self._outbox = self._outbox, None
        options = self._dist.distributed_c10d.AllreduceOptions()
        options.reduceOp = self._dist.ReduceOp.SUM
        options.timeout = timedelta(days=30)  # it may be under way for as long as training pauses for a checkpoint
        self._work = self._group.allreduce([self._header], options)

    def _send_payload(self, size: int) -> None:
        torch = self._torch
        if self._rank == 0:
            self._payload = torch.frombuffer(bytearray(self._payload), dtype=torch.uint8)
        else:
            self._payload = torch.empty(size, dtype=torch.uint8)
        options = self._dist.distributed_c10d.BroadcastOptions()
        options.rootRank, options.timeout = 0, timedelta(days=30)
        self._work = self._group.broadcast([self._payload], options)

    def _wait(self) -> None:
        if not self._work.wait(timedelta(seconds=_WAIT_S)):
            raise RuntimeError(f"a collective has not ended after {_WAIT_S:.0f} s")
        self._work = None

    def _leave(self) -> None:
        """Marks the broadcaster as lost, and closes the connections so that the other ranks notice at once.

        The connections stay open while a collective is under way: destroying the group would wait for it, with the
        interpreter lock held. The other ranks then wait for the same collective until their own time limit.
        """
        self.lost = True
        group, self._group = self._group, None
        work, self._work = self._work, None
        if work is None or work.is_completed():
            with suppress(RuntimeError, ValueError):
                self._dist.destroy_process_group(group)

    def close(self) -> None:
        """Drops the group; a collective that is under way is not waited for."""
        self.lost = True
        self._work = self._group = self._header = self._payload = self._outbox = None
