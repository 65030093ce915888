"""Zeus's privileged daemon, zeusd, over HTTP on its Unix socket.

Requests are sent with `block=true`, so that an answer means that the driver has done what they ask. Without it, zeusd
would queue requests, and never drop one for a newer one. zeusd has no lease: it restores nothing when a client dies.
"""

import http.client
import json
import os
import socket
from typing import Any
from urllib.parse import urlencode

from pfo_fs.device.gpu.interface import CALL_WITHIN_S, GpuPlace
from pfo_fs.errors import DeviceError, DevicePermissionError

DEFAULT_SOCKET = "/run/zeusd/zeusd.sock"
_MAX_ANSWER_BYTES = 256 * 1024


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: str, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class ZeusdBackend:
    """Sets the clocks of one GPU through zeusd.

    Args:
        alone: Whether the graphics clock can be reset alone; AMD's is reset together with the memory's.
        path: The socket; if None, the one that `ZEUSD_SOCK_PATH` names, as for Zeus, or else zeusd's default.
    """

    def __init__(
        self, place: GpuPlace, *, alone: bool = True, path: str | None = None, within_s: float | None = None
    ) -> None:
        self._place = place
        self._path = path or os.environ.get("ZEUSD_SOCK_PATH") or DEFAULT_SOCKET
        self._within_s = CALL_WITHIN_S if within_s is None else within_s
        token = os.environ.get("ZEUSD_TOKEN")
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._id: int | None = None
        self._reset = "reset_gpu_locked_clocks" if alone else "reset_locked_clocks"

    def why_not(self) -> str:
        """Asks zeusd what it offers; returns why it cannot set the clocks of this GPU, or ''."""
        try:
            self._find()
        except DeviceError as error:
            return str(error)
        return ""

    def lock_clock_mhz(self, mhz: int) -> None:
        self._post(f"locking it at {mhz} MHz", "set_gpu_locked_clocks", min_clock_mhz=mhz, max_clock_mhz=mhz)

    def reset_clocks(self) -> None:
        self._post("unlocking its clocks", self._reset)

    def set_power_limit_w(self, limit_w: float) -> None:
        what = f"setting a power limit of {limit_w:g} W"
        self._post(what, "set_power_limit", power_limit_mw=round(limit_w * 1000))

    def close(self) -> None:
        """Does nothing: each call has a connection of its own."""

    def _find(self) -> int:
        if self._id is None:
            try:
                offer = json.loads(self._ask("GET", "/discover", "discovering GPUs"))
                groups = offer["enabled_api_groups"]
                if "gpu-control" not in groups:
                    raise DevicePermissionError(
                        f"zeusd at {self._path} does not offer gpu-control (only {', '.join(map(str, groups))}); "
                        f"the operator starts it as root with --enable gpu-read,gpu-control"
                    )
                if offer["auth_required"] and not self._headers:
                    raise DevicePermissionError(
                        f"zeusd at {self._path} requires a token with the scope gpu-control; set ZEUSD_TOKEN"
                    )
                self._id = _number_of(self._place, offer["gpus"], self._path)
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise DeviceError(f"what answers at {self._path} is not zeusd ({error!r})") from None
        return self._id

    def _post(self, what: str, call: str, **values: int) -> None:
        query = urlencode({"gpu_ids": self._find(), **values, "block": "true"})
        self._ask("POST", f"/gpu/{call}?{query}", f"GPU {self._place.uuid}, {what}")

    def _ask(self, method: str, target: str, what: str) -> bytes:
        connection = _UnixConnection(self._path, self._within_s)
        try:
            connection.request(method, target, headers=self._headers)
            response = connection.getresponse()
            text = response.read(_MAX_ANSWER_BYTES)
        except TimeoutError:
            raise DeviceError(f"{what}: zeusd at {self._path} did not answer within {self._within_s:g} s") from None
        except OSError as error:
            raise DevicePermissionError(f"{what}: {self._no_connection(error)}") from None
        except http.client.HTTPException as error:
            raise DeviceError(f"{what}: zeusd at {self._path} sent an answer that is not HTTP: {error!r}") from None
        finally:
            connection.close()
        if response.status != 200:
            kind = DevicePermissionError if response.status in (401, 403) else DeviceError
            answer = text[:300].decode("utf-8", "replace")
            raise kind(f"{what}: zeusd at {self._path} refuses with HTTP {response.status}: {answer}")
        return text

    def _no_connection(self, error: OSError) -> str:
        if isinstance(error, FileNotFoundError):
            return (
                f"zeusd has no socket at {self._path}; the operator starts zeusd on this node and mounts the socket "
                f"into the container, or ZEUSD_SOCK_PATH names another place"
            )
        if isinstance(error, ConnectionRefusedError):
            return f"zeusd does not run: its socket {self._path} is left over; the operator starts zeusd"
        if isinstance(error, PermissionError):
            return (
                f"this user may not open zeusd's socket {self._path}; the operator adds the user to the socket's group "
                f"(zeusd's --socket-gid and --socket-permissions 660)"
            )
        return f"zeusd at {self._path} ended the connection ({error})"


def _number_of(place: GpuPlace, gpus: list[dict[str, Any]], path: str) -> int:
    """Returns zeusd's number of a GPU, by its PCI address: a container may show other indices than the host."""
    for gpu in gpus:
        if str(gpu.get("pci_address", "")).lower() == place.pci_address:
            return int(gpu["id"])
    raise DeviceError(
        f"zeusd at {path} does not name this GPU ({place.name} at {place.pci_address}); run a zeusd that tells PCI "
        f"addresses (0.5 or later), on the host"
    )
