"""Stand-ins for the programs through which clocks are set: zeusd, and sudo with nvidia-smi."""

import json
import os
import socketserver
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qsl, urlsplit

from running import HANGS_AFTER_S


class Zeusd:
    """An HTTP server on a Unix socket that answers as zeusd 0.5 does, and runs requests one by one.

    Args:
        path: The socket.

    Attributes:
        offer: The answer to `/discover`, as an object of JSON or as bytes.
        authorization: The header of the last request.
        status: The HTTP status of the answers to changes.
        runs: Cleared while the driver hangs: requests are accepted and do not end; only calls named `hangs_on`, if
            that is not empty.
        requests: Method, path and query of each request that has come.
        done: The changes that were made: (GPU number, call, values).
    """

    _VALUES: ClassVar[dict[str, set[str]]] = {
        "set_gpu_locked_clocks": {"min_clock_mhz", "max_clock_mhz"},
        "reset_gpu_locked_clocks": set(),
        "reset_locked_clocks": set(),
        "set_power_limit": {"power_limit_mw"},
    }

    def __init__(self, path: Path) -> None:
        self.path = path
        gpus = [{"id": i, "name": "NVIDIA A100", "pci_address": f"0000:{i + 0x3B:02x}:00.0"} for i in (1, 2, 0)]
        self.offer: Any = {
            "gpus": gpus,
            "cpus": [],
            "enabled_api_groups": ["gpu-control", "gpu-read"],
            "auth_required": False,
        }
        self.status = 200
        self.runs = threading.Event()
        self.runs.set()
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        self.done: list[tuple[int, str, dict[str, int]]] = []
        self.hangs_on = ""
        self.authorization = ""
        self.under_way = 0
        self._driver = threading.Lock()
        stand_in = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self._answer("GET")

            def do_POST(self) -> None:
                self._answer("POST")

            def _answer(self, method: str) -> None:
                parts = urlsplit(self.path)
                query = dict(parse_qsl(parts.query))
                stand_in.authorization = self.headers.get("Authorization", "")
                stand_in.requests.append((method, parts.path, query))
                status, body = stand_in._result(method, parts.path, query)
                with suppress(OSError):  # the client has given up
                    self.send_response(status)
                    self.send_header("Content-Length", str(len(body)))
                    self.end_headers()
                    self.wfile.write(body)

            def address_string(self) -> str:
                return "a client"

            def log_message(self, *_: object) -> None:
                pass

        class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
            daemon_threads = True

        self._server = Server(str(path), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def _result(self, method: str, path: str, query: dict[str, str]) -> tuple[int, bytes]:
        if (method, path) == ("GET", "/discover"):
            return 200, self.offer if isinstance(self.offer, bytes) else json.dumps(self.offer).encode()
        call = path.removeprefix("/gpu/")
        if method != "POST" or set(query) != {"gpu_ids", "block", *self._VALUES.get(call, {"?"})}:
            return 400, b"unknown call or field"
        if query["block"] not in ("true", "false"):
            return 400, b"block is true or false"
        if self.status != 200:
            return self.status, json.dumps({"errors": {query["gpu_ids"]: "NVML error: refused"}}).encode()
        self.under_way += 1
        with self._driver:  # a request also runs if its client has given up
            if self.hangs_on in ("", call):
                self.runs.wait(HANGS_AFTER_S)
            values = {name: int(query[name]) for name in self._VALUES[call]}
            self.done += [(int(number), call, values) for number in query["gpu_ids"].split(",")]
            self.under_way -= 1
        return 200, b""

    @property
    def clock_changes(self) -> list[int]:
        """The clocks set so far in MHz, 0 for a reset."""
        return [values.get("min_clock_mhz", 0) for _, call, values in self.done if "clocks" in call]

    def close(self) -> None:
        """Ends the server; its socket file stays, as after a kill."""
        self.runs.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


_SUDO = """#!/bin/sh
while [ -e {folder}/hangs ]; do sleep 0.02; done
case "$*" in *-pl*) refused=refuses ;; *) refused="refuses*" ;; esac
if ls {folder}/$refused >/dev/null 2>&1; then echo "sudo: a password is required" >&2; exit 1; fi
[ "$1" = -n ] || {{ echo "sudo: no terminal" >&2; exit 1; }}
shift
if [ "$1" = -l ]; then echo "/usr/bin/$*"; exit 0; fi
exec "$@"
"""
_NVIDIA_SMI = """#!/bin/sh
echo "$$ begins $*" >> {folder}/calls
while [ -e {folder}/slow ]; do sleep 0.02; done
if [ -e {folder}/fails ]; then echo "Provided value is not valid"; exit 2; fi
echo "$$ ends $*" >> {folder}/calls
"""


class Sudo:
    """Programs `sudo` and `nvidia-smi` in a folder for PATH; files beside them, such as `refuses`, change what they do.

    Args:
        folder: An empty folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name, text in (("sudo", _SUDO), ("nvidia-smi", _NVIDIA_SMI)):
            (folder / name).write_text(text.format(folder=folder))
            (folder / name).chmod(0o755)

    @property
    def calls(self) -> list[str]:
        """The beginnings and ends of calls of nvidia-smi, each with the number of the process."""
        path = self.folder / "calls"
        return path.read_text().splitlines() if path.exists() else []

    @property
    def path(self) -> str:
        return f"{self.folder}{os.pathsep}{os.environ['PATH']}"
