"""Clock processes of this host that a signal has stopped: they keep a clock that no process resets.

`scontrol suspend` sends SIGTSTP first, at which a clock process resets the clock itself; SIGSTOP alone leaves it no
time. The end of its trainer makes it go on (`device/clocks/stops.py`).
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable
from dataclasses import dataclass

from pfo_fs.ipc import messages as m
from pfo_fs.ipc.process_state import is_stopped
from pfo_fs.ipc.transport import peer_of

log = logging.getLogger("pfo_fs.helper")

LOOK_EVERY_S = 2.0
"""A clock process that is stopped at two looks is stopped for good: a debugger stops one for a moment only."""


@dataclass
class _ClockProcess:
    rank: int
    pid: int
    gpu_spec: str
    looks: int = 0  # how often in a row it was seen stopped


class StoppedClocks:
    """Resets the clocks of GPUs whose clock process is stopped, once for each stop.

    Args:
        reset_clocks: Resets the clocks of a GPU, without waiting.
    """

    def __init__(self, reset_clocks: Callable[[str], None]) -> None:
        self._reset_clocks = reset_clocks
        self._clocks: dict[int, _ClockProcess] = {}
        self._look_at_s = 0.0

    def hear(self, client: int, message: m.ToHelper, connection: socket.socket) -> None:
        """Learns from a message which process a client is."""
        if isinstance(message, m.Hello) and message.gpu_spec:
            pid, _ = peer_of(connection)
            if pid > 0:
                self._clocks[client] = _ClockProcess(message.rank, pid, message.gpu_spec)
        elif isinstance(message, m.ClocksReleased):
            self._clocks.pop(client, None)

    def gone(self, client: int) -> None:
        """Forgets a client whose connection has ended."""
        self._clocks.pop(client, None)

    def look(self, now_s: float) -> None:
        """Looks, from time to time, at all clock processes."""
        if now_s < self._look_at_s:
            return
        self._look_at_s = now_s + LOOK_EVERY_S
        for clocks in self._clocks.values():
            clocks.looks = clocks.looks + 1 if is_stopped(clocks.pid) else 0
            if clocks.looks == 2:
                log.warning("the clock process of rank %d is stopped; the helper resets the clocks", clocks.rank)
                self._reset_clocks(clocks.gpu_spec)
