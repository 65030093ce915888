"""The GEOPM service, which checks access lists and restores all settings when its client dies.

The service gives one client of a node the right to write, and ties that right to the client's session leader. Clock
processes are session leaders of their own, so they share one process of this host that writes for all of them
(`geopm_relay.py`). The first clock process starts it; it ends when the last one has gone.
"""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import time
import zlib
from typing import Any

from pfo_fs.device.clock_backends.interface import CALL_WITHIN_S, GpuPlace
from pfo_fs.errors import DeviceError
from pfo_fs.ipc import transport
from pfo_fs.ipc.spawn import start_process

_MAX_ANSWER_BYTES = 65536
"""Answers of the relay are far shorter; a longer one is none of it."""


def relay_address() -> str:
    """Returns the abstract address of this user's relay on this host; one for each `PFO_FS_RUN_DIR`."""
    folder = os.environ.get("PFO_FS_RUN_DIR", "")
    return f"pfo-fs-geopm-{os.geteuid()}-{zlib.crc32(folder.encode()):08x}"


class GeopmBackend:
    """Sets the clocks of one GPU through the relay of this host.

    The clock is set as the highest one that is permitted, which is the clock that a busy GPU runs at.

    Args:
        place: The GPU.
        within_s: The longest time of one call.
    """

    def __init__(self, place: GpuPlace, *, within_s: float | None = None) -> None:
        self._place = place
        self._within_s = CALL_WITHIN_S if within_s is None else within_s
        self._relay: socket.socket | None = None

    def why_not(self) -> str:
        """Asks the relay, which it starts if needed, whether GEOPM can control this GPU; returns why not, or ''."""
        if importlib.util.find_spec("geopmdpy") is None:
            return "the Python package geopmdpy of the GEOPM service is not installed here"
        try:
            self._ask("checking the GEOPM service", "check", self._place.gpu_count)
        except DeviceError as error:
            return str(error)
        return ""

    def lock_clock_mhz(self, mhz: int) -> None:
        """Sets the highest permitted graphics clock to `mhz`; raises as described in `ClockBackend`."""
        self._ask(f"GPU {self._place.uuid}, locking it at {mhz} MHz", "lock", mhz)

    def reset_clocks(self) -> None:
        """Lets the driver choose the graphics clock again."""
        self._ask(f"GPU {self._place.uuid}, unlocking its clocks", "reset", 0)

    def set_power_limit_w(self, limit_w: float) -> None:
        """Sets the power limit, in watts; GEOPM restores the one before when the relay ends."""
        self._ask(f"GPU {self._place.uuid}, setting a power limit of {limit_w:g} W", "limit", limit_w)

    def close(self) -> None:
        """Leaves the relay, which then resets a clock that is still locked."""
        if self._relay is not None:
            self._relay.close()
            self._relay = None

    def _ask(self, what: str, do: str, value: float) -> None:
        request = {"do": do, "gpu": self._place.nvml_index, "value": value}
        try:
            if self._relay is None:
                self._relay = self._connect(what)
            self._relay.send(json.dumps(request).encode(), socket.MSG_NOSIGNAL)
            answer: dict[str, Any] = json.loads(self._relay.recv(_MAX_ANSWER_BYTES) or b'{"error": "it has ended"}')
        except TimeoutError:
            self.close()  # so that its late answer is not taken for that to the next call
            raise DeviceError(f"{what}: the GEOPM service did not answer within {self._within_s:g} s") from None
        except (OSError, ValueError) as error:
            self.close()
            raise DeviceError(f"{what}: the connection to the GEOPM relay of this host has failed ({error})") from None
        if "error" in answer:
            raise DeviceError(f"{what}: {answer['error']}")

    def _connect(self, what: str) -> socket.socket:
        """Connects to the relay, and starts it if there is none."""
        deadline_s = time.monotonic() + self._within_s
        started = False
        while True:
            try:
                relay = transport.connect(relay_address())
                relay.settimeout(self._within_s)
                return relay
            except OSError as error:
                if not started:
                    address = {"address": relay_address()}
                    start_process("pfo_fs.device.clock_backends.geopm_relay", address, outlives=True)
                    started = True
                elif time.monotonic() > deadline_s:
                    raise DeviceError(f"{what}: the GEOPM relay of this host has not started ({error})") from None
            time.sleep(0.02)
