"""The process of rank 0 that chooses all ranks' clocks, so that its arithmetic never holds training's interpreter lock.

It gets the rows of each step through a socket pair, and ends when training has closed its end.
"""

from __future__ import annotations

import json
import os
import socket
import struct
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from multiprocessing.connection import Connection
from typing import Any

from pfo_fs.ipc.own_file import OwnFile
from pfo_fs.ipc.process_end import in_forked_children
from pfo_fs.ipc.spawn import start_process
from pfo_fs.loads.energies import Saving
from pfo_fs.loads.state import LoadsState

_TIME = struct.Struct("d")


class LoadProcess:
    """Training's side of the process.

    Args:
        lanes, offered_mhz, change_s, lost_time: As for `LoadCoordinator`.

    Raises:
        OSError: The process cannot be started.
    """

    def __init__(self, lanes: Sequence[int], offered_mhz: Sequence[int], change_s: float, lost_time: float) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            given = {"lanes": lanes, "offered_mhz": offered_mhz, "change_s": change_s, "lost_time": lost_time}
            self._process = start_process("pfo_fs.training.load_process", given, fds={"socket_fd": theirs.fileno()})
        self._connection = Connection(ours.detach())
        self._state = b""
        in_forked_children(OwnFile(self._connection.fileno()).close)

    def decide(self, rows: Any, at_s: float) -> bytes:
        """Returns the clock of each rank in MHz, as numbers of 32 bits; waits for the process.

        Args:
            rows: The rows of all ranks, an array of numbers of 64 bits.
            at_s: When rank 0 has posted its own, in s.

        Raises:
            OSError, EOFError: The process has ended.
        """
        self._connection.send_bytes(_TIME.pack(at_s) + rows.tobytes())
        clocks = self._connection.recv_bytes()
        self._state = self._connection.recv_bytes()
        return clocks

    @property
    def state(self) -> LoadsState | None:
        """What was known at the last step; None before it."""
        if not self._state:
            return None
        found = json.loads(self._state)
        saving = found.pop("saving")
        return LoadsState(**found, saving=None if saving is None else Saving(**saving))

    def close(self) -> None:
        """Ends the process."""
        with suppress(OSError):
            self._connection.close()


def main(given: dict[str, Any]) -> int:
    """Runs the process."""
    import numpy as np

    from pfo_fs.loads.coordinator import LoadCoordinator

    with suppress(OSError):
        os.nice(5)  # a step that gets its clock late only saves less
    connection = Connection(given.pop("socket_fd"))
    ranks = len(given["lanes"])
    coordinator = LoadCoordinator(**given)
    while True:
        try:
            packet = connection.recv_bytes()
            rows = np.frombuffer(packet[_TIME.size :]).reshape(ranks, -1)
            clocks = coordinator.receive(rows, _TIME.unpack(packet[: _TIME.size])[0])
            connection.send_bytes(np.array(clocks, np.int32).tobytes())
            connection.send_bytes(json.dumps(asdict(coordinator.state)).encode())
        except (EOFError, OSError):
            return 0
