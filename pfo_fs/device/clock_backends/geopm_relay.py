"""The process of a host that holds GEOPM's one session with the right to write, for all clock processes of this user.

It makes one call at a time, in the order of the requests. A GPU whose clock process has gone gets its default clocks
back. When this process ends, or is killed, the GEOPM service restores all settings.
"""

from __future__ import annotations

import errno
import importlib
import json
import select
import socket
import time
from contextlib import suppress
from typing import Any

from pfo_fs.device.clocks.undo import UNDO_FOR_S
from pfo_fs.ipc import transport

_RETRY_S = 1.0
"""A reset that has failed is tried again after this time."""
IDLE_S = 10.0
"""The relay ends after this time without a clock process."""

_LOCK = "NVML::GPU_CORE_FREQUENCY_MAX_CONTROL"
_RESET = "NVML::GPU_CORE_FREQUENCY_RESET_CONTROL"
_LIMIT = "NVML::GPU_POWER_LIMIT_CONTROL"
_MAX_REQUEST_BYTES = 4096


class Geopm:
    """The GEOPM service, through `geopmdpy`; it is imported at the first request, since that needs its libraries."""

    def __init__(self) -> None:
        self._pio: Any = None
        self._topo: Any = None

    def check(self, count: int) -> str:
        """Returns why GPUs cannot be controlled, or ''; `count`: how many GPUs the clock process sees."""
        try:
            self._load()
            missing = sorted({_LOCK, _RESET} - set(self._pio.control_names()))
            seen = int(self._topo.num_domain("gpu"))
        except Exception as error:  # noqa: BLE001  geopmdpy raises errors of many kinds, without its library too
            return f"the GEOPM service cannot be used ({error}); the operator installs and starts it (geopm.service)"
        if missing:
            names = ", ".join(missing)
            return f"the GEOPM service does not permit {names}; the operator adds it by `geopmaccess -c -e`"
        if seen != count:
            return f"the GEOPM service shows {seen} GPUs and this process sees {count}, so numbers would not agree"
        return ""

    def write(self, control: str, gpu: int, value: float) -> None:
        """Sets a control of one GPU, in hertz or watts.

        Raises:
            RuntimeError: The service refuses.
        """
        self._load()
        self._pio.write_control(control, "gpu", gpu, value)

    def _load(self) -> None:
        if self._pio is None:
            self._topo = importlib.import_module("geopmdpy.topo")
            self._pio = importlib.import_module("geopmdpy.pio")


class Relay:
    """Serves clock processes.

    Args:
        server: The listening socket.
        geopm: The service.
    """

    def __init__(self, server: socket.socket, geopm: Geopm) -> None:
        self._server = server
        self._geopm = geopm
        self._clients: dict[int, socket.socket] = {}
        self._locked: dict[int, set[int]] = {}
        self._owed: set[int] = set()  # GPUs whose clock process has gone, and that could not be reset yet
        self._poll = select.poll()
        self._poll.register(server, select.POLLIN)

    def serve(self, idle_s: float = IDLE_S) -> None:
        """Serves until there has been no clock process for `idle_s`."""
        owes_until_s = float("inf")
        while True:
            owes_until_s = min(owes_until_s, time.monotonic() + UNDO_FOR_S) if self._owed else float("inf")
            wait_s = _RETRY_S if self._owed else None if self._clients else idle_s
            events = self._poll.poll(None if wait_s is None else wait_s * 1000)
            if self._owed:
                self._reset_owed()
                if not self._clients and time.monotonic() > owes_until_s:
                    return  # the GEOPM service restores all settings when its client ends
                if not events:
                    continue
            if not events:
                return
            for fd, _ in events:
                if fd == self._server.fileno():
                    self._accept()
                else:
                    self._receive(fd)

    def _accept(self) -> None:
        client, _ = self._server.accept()
        try:
            transport.check_peer(client)
        except OSError:
            client.close()
            return
        self._clients[client.fileno()], self._locked[client.fileno()] = client, set()
        self._poll.register(client, select.POLLIN)

    def _receive(self, fd: int) -> None:
        client = self._clients[fd]
        packet = b""
        with suppress(OSError):
            packet = client.recv(_MAX_REQUEST_BYTES, socket.MSG_DONTWAIT)
        if not packet:
            self._drop(fd)
            return
        try:
            self._do(json.loads(packet), self._locked[fd])
            answer = {}
        except Exception as error:  # noqa: BLE001  whatever fails is the answer, and the next request is served
            answer = {"error": str(error) or repr(error)}
        with suppress(OSError):
            client.send(json.dumps(answer).encode(), socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT)

    def _do(self, request: dict[str, Any], locked: set[int]) -> None:
        do, gpu, value = request["do"], int(request["gpu"]), float(request["value"])
        if do == "check":
            reason = self._geopm.check(int(value))
            if reason:
                raise RuntimeError(reason)
        elif do == "lock":
            locked.add(gpu)
            self._geopm.write(_LOCK, gpu, value * 1e6)
        elif do == "reset":
            self._geopm.write(_RESET, gpu, 0.0)
            locked.discard(gpu)
        elif do == "limit":
            self._geopm.write(_LIMIT, gpu, value)
        else:
            raise ValueError(f"unknown request {do!r}")

    def _drop(self, fd: int) -> None:
        """Forgets a client that has gone, and resets the clocks that it has left locked."""
        self._poll.unregister(fd)
        self._clients.pop(fd).close()
        self._owed |= self._locked.pop(fd)
        self._reset_owed()

    def _reset_owed(self) -> None:
        held = set().union(*self._locked.values())
        for gpu in list(self._owed):
            with suppress(Exception):
                if gpu not in held:  # another clock process has locked it since
                    self._geopm.write(_RESET, gpu, 0.0)
                self._owed.discard(gpu)


def main(given: dict[str, Any]) -> int:
    """Runs the relay, which ends when the clock processes have gone; ends at once if this host has one already."""
    try:
        server = transport.listen(given["address"])
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return 0
        raise
    Relay(server, Geopm()).serve()
    return 0
