"""The helper's loop, with a state that only waits for one write."""

import socket
import threading
from pathlib import Path
from typing import Any
from unittest.mock import Mock

from running import HANGS_AFTER_S

from pfo_fs.helper import events as e
from pfo_fs.helper import operations as op
from pfo_fs.helper.loop import HelperLoop


class WaitsForOneWrite:
    """Training has ended when this state begins, and one operation is left."""

    def __init__(self) -> None:
        self.is_idle = False
        self.times_woken = 0

    def first_actions(self) -> list[e.Action]:
        return [e.Run(op.OpenDirectory()), e.Stop()]

    def handle(self, event: e.Event, now_s: float) -> list[e.Action]:
        if isinstance(event, e.OperationDone):
            self.is_idle = True
        else:
            self.times_woken += 1
        return []

    def next_wake_s(self) -> float:
        return float("inf")


class HangingDirectory:
    def __init__(self, released: threading.Event) -> None:
        self._released = released

    def execute(self, operation: Any) -> None:
        assert self._released.wait(HANGS_AFTER_S)


def test_a_helper_whose_last_write_hangs_sleeps_until_the_write_is_done(tmp_path: Path) -> None:
    released = threading.Event()
    state = WaitsForOneWrite()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.bind(str(tmp_path / "socket"))
        server.listen()
        loop = HelperLoop(state, HangingDirectory(released), lambda _: Mock(), lambda: None, lambda _: "")
        serving = threading.Thread(target=loop.serve, args=(server,), daemon=True)
        serving.start()
        serving.join(1.0)  # the write hangs for this time
        woken_meanwhile, still_served = state.times_woken, serving.is_alive()
        released.set()
        serving.join(HANGS_AFTER_S)
    assert still_served
    assert not serving.is_alive()
    assert woken_meanwhile <= 1  # by the clock alone it wakes after five seconds
