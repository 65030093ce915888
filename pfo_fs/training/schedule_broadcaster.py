"""Carries schedules by `torch.distributed` where no daemon schedules: rank 0 has them, all ranks get them.

Nothing here waits in a step. Rank 0 announces at an agreed step whether it has something; the broadcast runs in the
background of gloo while training goes on, and is looked at some steps later, when it has long arrived. All of it
happens at steps that every rank knows, so every collective is issued in the same order everywhere, and a new
schedule comes into force at the same step on all ranks.
"""

from __future__ import annotations

import logging
import math
from datetime import timedelta
from typing import Any

log = logging.getLogger(__name__)

_FLIGHT_TIME_S = 0.5
"""How long a broadcast may be under way before a rank looks at it, in seconds of steps."""
_MAX_FLIGHT_STEPS = 1000
_WAIT_S = 60.0
"""After this long a rank that should have sent is taken for gone; ranks in lockstep never come near it."""
_MAX_PACKET_BYTES = 64 * 1024 * 1024


class ScheduleBroadcaster:
    """Broadcasts packets from rank 0, in step with training.

    Making one is a collective call of all ranks. `step_begin` must be called by every rank at every step.

    Args:
        rank: Global rank of this process.
    """

    def __init__(self, rank: int) -> None:
        import torch
        import torch.distributed as dist

        self._torch: Any = torch
        self._dist: Any = dist
        self._rank = rank
        self._group: Any = dist.new_group(backend="gloo", timeout=timedelta(seconds=_WAIT_S))
        # A broadcast may be under way for as long as training pauses, for a checkpoint, say.
        self._options: Any = dist.distributed_c10d.BroadcastOptions()
        self._options.rootRank, self._options.timeout = 0, timedelta(days=30)
        self._outbox: bytes | None = None
        self._phase = "announce"
        self._at_step = 1
        self._flight_steps = 1
        self._header: Any = None
        self._payload: Any = None
        self._work: Any = None
        self.lost = False

    def first(self, packet: bytes | None) -> bytes | None:
        """Hands rank 0's packet, or None, to all ranks at once; collective and blocking, for start-up only."""
        box = [packet]
        self._dist.broadcast_object_list(box, src=0, group=self._group, device=self._torch.device("cpu"))
        return box[0]

    def offer(self, packet: bytes) -> None:
        """Rank 0: the packet to carry next, in place of one that is not under way yet."""
        if len(packet) <= _MAX_PACKET_BYTES:
            self._outbox = packet
        else:
            log.error("a schedule of %d MiB is too large for torch.distributed; use a daemon", len(packet) >> 20)

    def step_begin(self, step: int, iter_time_s: float | None) -> bytes | None:
        """Does what is due at this step.

        Args:
            step: The step that begins, the same on all ranks.
            iter_time_s: How long a step takes; only rank 0's matters.

        Returns:
            The packet that comes into force with this step, on all ranks; None for most steps.
        """
        if step < self._at_step or self.lost:
            return None
        try:
            return self._advance(step, iter_time_s)
        except RuntimeError as error:
            self.lost = True
            log.warning("rank %d: schedules can no longer be carried, the last one stays: %s", self._rank, error)
            return None

    def _advance(self, step: int, iter_time_s: float | None) -> bytes | None:
        torch = self._torch
        packet = None
        if self._phase == "announce":
            self._header = torch.zeros(2, dtype=torch.int64)
            if self._rank == 0:
                flight = math.ceil(_FLIGHT_TIME_S / iter_time_s) if iter_time_s else 1
                self._header[0] = len(self._outbox or b"")
                self._header[1] = min(max(flight, 1), _MAX_FLIGHT_STEPS)
                self._payload, self._outbox = self._outbox, None
            self._send(self._header)
            self._phase = "header"
        elif self._phase == "header":
            self._wait()
            size, self._flight_steps = int(self._header[0]), int(self._header[1])
            self._phase = "announce"
            if size:
                if self._rank == 0:
                    self._payload = torch.frombuffer(bytearray(self._payload), dtype=torch.uint8)
                else:
                    self._payload = torch.empty(size, dtype=torch.uint8)
                self._send(self._payload)
                self._phase = "payload"
        else:
            self._wait()
            packet = self._payload.numpy().tobytes()
            self._payload = None
            self._phase = "announce"
        self._at_step = step + self._flight_steps
        return packet

    def _send(self, tensor: Any) -> None:
        self._work = self._group.broadcast([tensor], self._options)

    def _wait(self) -> None:
        if not self._work.wait(timedelta(seconds=_WAIT_S)):
            raise RuntimeError(f"a broadcast has not arrived after {_WAIT_S:.0f} s")
        self._work = None

    def close(self) -> None:
        """Drops the group; a broadcast that is under way is not waited for."""
        self.lost = True
        self._work = self._group = None
