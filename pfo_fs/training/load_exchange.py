"""Exchanges the loads of a step among all ranks: each sends a row to rank 0, which answers with everybody's clock.

A thread of its own does that, by gloo in a process group of its own, so that training never waits for it. All ranks
post the same steps in the same order. A rank that is late delays the clocks of that step for all, not the step.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from queue import SimpleQueue
from typing import Any, NamedTuple

from pfo_fs.errors import plain_text

_CONNECTS_WITHIN_S = 60.0
_PATIENT = timedelta(days=30)
"""The exchange of a step may be under way for as long as a rank writes a checkpoint."""


class Posted(NamedTuple):
    """One step of this rank: its number, what makes its row, when it was posted."""

    step: int
    make_row: Callable[[], list[float]]
    at_s: float


class LoadExchange:
    """This rank's part; making one is a collective call of all ranks.

    Args:
        rank: Global rank.
        width: Length of a row.
        decide: On rank 0: called with (rows of all ranks as an array, when rank 0 has posted its own, in s); returns
            the clock of each rank in MHz, as numbers of 32 bits. None on the other ranks.
        decided: Called with (step, MHz) once this rank's clock is known; in the exchange's thread.
        failed: Called with a text once the exchange works no more; in its thread.
    """

    def __init__(
        self,
        rank: int,
        width: int,
        decide: Callable[[Any, float], bytes] | None,
        decided: Callable[[int, int], None],
        failed: Callable[[str], None],
    ) -> None:
        import torch
        import torch.distributed as dist

        self._torch: Any = torch
        self._dist: Any = dist
        self._rank, self._size, self._width = rank, dist.get_world_size(), width
        self._decide, self._decided, self._failed = decide, decided, failed
        self._row, self._clocks = torch.empty(width, dtype=torch.float64), torch.empty(self._size, dtype=torch.int32)
        self._rows = torch.empty((self._size if rank == 0 else 0, width), dtype=torch.float64)
        gather, broadcast = dist.distributed_c10d.GatherOptions(), dist.distributed_c10d.BroadcastOptions()
        gather.rootRank = broadcast.rootRank = 0
        gather.timeout = broadcast.timeout = _PATIENT
        self._options = gather, broadcast
        self._group: Any = dist.new_group(backend="gloo", timeout=timedelta(seconds=_CONNECTS_WITHIN_S))
        self._posted: SimpleQueue[Posted | None] = SimpleQueue()
        self._closed = False
        self._thread = threading.Thread(target=self._serve, name="pfo-fs loads", daemon=True)
        self._thread.start()

    def post(self, step: int, make_row: Callable[[], list[float]]) -> None:
        """Exchanges a step; does not wait. `make_row` is called in the exchange's thread."""
        self._posted.put(Posted(step, make_row, time.monotonic()))

    def close(self) -> None:
        """Ends the exchange; what is under way is not waited for."""
        if not self._closed:
            self._closed = True
            self._posted.put(None)

    def _serve(self) -> None:
        problem = ""
        try:
            while (posted := self._posted.get()) is not None and not self._closed:
                self._exchange(posted)
                self._decided(posted.step, int(self._clocks[self._rank]))
        except Exception as error:  # noqa: BLE001  whatever fails, training goes on at default clocks
            problem = _in_short(error)
        group, self._group = self._group, None
        with suppress(Exception):  # the other ranks see its end at once
            self._dist.destroy_process_group(group)
        if problem and not self._closed:
            self._failed(problem)

    def _exchange(self, posted: Posted) -> None:
        """Sends this rank's row, and receives all clocks; holds the interpreter lock for short times only."""
        gather, broadcast = self._options
        self._row.numpy()[:] = posted.make_row()
        self._group.gather([list(self._rows)] if self._rank == 0 else [], [self._row], gather).wait(_PATIENT)
        if self._decide is not None:
            answer = self._decide(self._rows.numpy(), posted.at_s)
            self._clocks.copy_(self._torch.frombuffer(bytearray(answer), dtype=self._torch.int32))
        self._group.broadcast([self._clocks], broadcast).wait(_PATIENT)


def _in_short(error: Exception) -> str:
    """The message of an error; of one of gloo, without its place in the source and its advice."""
    text = plain_text(str(error)) or repr(error)
    return (text.partition("] ")[2] if text.startswith("[") else text).partition(". ")[0][:200]
