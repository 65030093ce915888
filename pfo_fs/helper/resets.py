"""Resets GPUs of this host whose clock process has died, or was stopped: they keep a clock, or a power limit.

The helper resets them itself, in threads, and loads what it needs for that beforehand: the environment of a running job
may be replaced, and then no process can start any more. `scontrol suspend` sends SIGTSTP first, at which a clock
process resets the GPU itself; SIGSTOP alone leaves it no time.
"""

import logging
import socket
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from pfo_fs.helper.rank_board import RankBoard
from pfo_fs.ipc import messages as m
from pfo_fs.ipc.process_end import is_stopped
from pfo_fs.ipc.transport import peer_of

log = logging.getLogger("pfo_fs.helper")

_AGAIN_AFTER_S = 10.0
"""The pause before another attempt: an attempt lasts two minutes, but an error that does not pass ends it at once."""
LOOK_EVERY_S = 2.0
"""A clock process that is stopped at two looks in a row is stopped for good: a debugger stops one for a moment only."""


@dataclass
class _ClockProcess:
    rank: int
    pid: int
    gpu: m.GpuToReset
    looks: int = 0  # how often in a row it was seen stopped


class OwedResets:
    """Keeps account of the GPUs of this host that are still to be reset, for the job's status, by arithmetic only.

    Args:
        reset: Resets the GPU of a rank after a pause in s, without waiting.
    """

    def __init__(self, board: RankBoard, reset: Callable[[int, m.GpuToReset, float], None]) -> None:
        self._board, self._reset = board, reset
        self._failures: Counter[int] = Counter()  # by rank
        self.under_way = 0

    def begin(self, rank: int, gpu: m.GpuToReset, why: str) -> None:
        """Notes that the clock process of a rank cannot reset its GPU, and begins the first attempt."""
        text = f"the clock process of rank {rank} {why}; its GPU is to be reset"
        log.warning("%s", text)
        self._board.note_reset(rank, text, owed=True, failed=False)
        self.under_way += 1
        self._reset(rank, gpu, 0.0)

    def ended(self, rank: int, gpu: m.GpuToReset, problem: str, *, again: bool) -> None:
        """Notes how an attempt has ended; begins the next one if this one has failed and `again` is set."""
        failed = bool(problem)
        self._failures[rank] += failed
        text = f"the GPU of rank {rank} is not reset: {problem}" if failed else f"the GPU of rank {rank} is reset"
        if self._failures[rank] <= 1 or not failed:
            log.warning("%s", text)
        self._board.note_reset(rank, text, owed=failed, failed=failed)
        if failed and again:
            self._reset(rank, gpu, _AGAIN_AFTER_S)
        else:
            self.under_way -= 1


class Resets:
    """Carries the resets out, and sees which clock processes are stopped.

    Args:
        prepare: Loads what `reset` needs.
        reset: Resets a GPU, and returns why it is not reset, or ''; may take minutes, or hang with the driver.
        ended: Is called, in another thread, with rank, GPU and the text that `reset` returned.
        stopped: Is called with rank and GPU of a clock process that is stopped.
    """

    def __init__(
        self,
        prepare: Callable[[], None],
        reset: Callable[[m.GpuToReset], str],
        ended: Callable[[int, m.GpuToReset, str], None],
        stopped: Callable[[int, m.GpuToReset], None],
    ) -> None:
        self._prepare, self._reset, self._ended, self._stopped = prepare, reset, ended, stopped
        self._clocks: dict[int, _ClockProcess] = {}
        self._look_at_s = 0.0
        self._prepared = False

    def start(self, rank: int, gpu: m.GpuToReset, pause_s: float = 0.0) -> None:
        """Resets the GPU of a rank after a pause, without waiting."""

        def run() -> None:
            try:
                problem = self._reset(gpu)
            except Exception as error:  # noqa: BLE001  whatever a driver raises is the reason
                problem = str(error) or repr(error)
            self._ended(rank, gpu, problem)

        thread = threading.Timer(pause_s, run)
        thread.daemon = True
        thread.start()

    def hear(self, client: int, message: m.ToHelper, connection: socket.socket) -> None:
        """Learns from a message which process a client is."""
        if isinstance(message, m.Hello) and message.gpu is not None:
            if not self._prepared:
                self._prepared = True
                threading.Thread(target=self._prepare, daemon=True, name="modules for resets").start()
            pid, _ = peer_of(connection)
            if pid > 0:
                self._clocks[client] = _ClockProcess(message.rank, pid, message.gpu)
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
                self._stopped(clocks.rank, clocks.gpu)
