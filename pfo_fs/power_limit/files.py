"""The training process's side of the profile file and the shared directory: nothing here waits, but for the start."""

from __future__ import annotations

import logging
import os
import select
import socket
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from pydantic import ValidationError

from pfo_fs.ipc import transport
from pfo_fs.ipc.spawn import start_process
from pfo_fs.power_limit.folder import Result
from pfo_fs.power_limit.measurements import PowerLimitMeasurement, profile_text

log = logging.getLogger("pfo_fs")


class ProfileFiles:
    """A helper process that has the files in hand.

    Attributes:
        profile_path: The profile's path as it was given.
        profile: The profile as it was at the start; None if there was none.
        profile_error: Why what is there is no profile; empty if it is one, or there is none.
        measurements: What others have measured, by limit in W.
        results: What others have chosen, in W, by selector.
        begun_w: Limits, in W, that somebody has begun with.

    Args:
        profile_path: The profile; None for none.
        shared_dir: The shared directory; None for none.
        key: What is measured, for the shared directory.
        timeout_s: How long the start may take; after that, and after any problem, there is one warning, and training
            goes on as if there were no files.
    """

    def __init__(
        self,
        profile_path: str | os.PathLike[str] | None,
        shared_dir: str | os.PathLike[str] | None,
        key: str,
        timeout_s: float = 15.0,
    ) -> None:
        self.profile: list[PowerLimitMeasurement] | None = None
        self.profile_error = ""
        self._arriving: list[PowerLimitMeasurement] = []
        self._may_replace = False  # what is there is known to be a profile, or nothing
        self.measurements: dict[int, PowerLimitMeasurement] = {}
        self.results: dict[str, int] = {}
        self.begun_w: set[int] = set()
        self.profile_path = profile_path
        self._given = {
            "profile_path": None if profile_path is None else os.path.abspath(profile_path),
            "shared_dir": None if shared_dir is None else os.path.abspath(shared_dir),
            "key": key,
        }
        self._socket: socket.socket | None = None
        self._leaving: list[socket.socket] = []
        self._processes: list[subprocess.Popen[bytes]] = []  # those that may still write
        self._started = False
        self._shares = False
        self._warned = False
        if profile_path is None and shared_dir is None:
            return
        self._start()
        if not self._wait(lambda: self._started, timeout_s) and self._socket is not None:
            self._warn(f"no answer within {timeout_s:.0f} s; does the file system hang?")
            self.leave()

    def wait_for_result(self, selector: str, timeout_s: float = 5.0) -> None:
        """Waits, at the start only, until it is known whose choice counts."""
        self._wait(lambda: selector in self.results, timeout_s)

    def _wait(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        deadline_s = time.monotonic() + timeout_s
        while not condition():
            left_s = deadline_s - time.monotonic()
            if self._socket is None or left_s <= 0:
                return False
            poller = select.poll()
            poller.register(self._socket, select.POLLIN)
            poller.poll(left_s * 1000)
            self.look()
        return True

    @property
    def shares(self) -> bool:
        """Whether there is a shared directory that can be used."""
        return self._shares and self._socket is not None

    def look(self) -> None:
        """Takes in what the helper has said meanwhile."""
        while self._socket is not None:
            try:
                packet = transport.receive(self._socket, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            if not packet:
                self._warn("its helper process has died")
                self.leave()
                return
            try:
                self._take(transport.decode(packet, dict))
            except (ValueError, KeyError, TypeError) as error:
                self._warn(f"a message that cannot be read: {error}")

    def _take(self, message: dict[str, Any]) -> None:
        if message["type"] == "problem":
            self._warn(message["message"])
            return
        if message["type"] == "profile":
            lot = [PowerLimitMeasurement.model_validate(found) for found in message["measurements"]]
            self._arriving += lot
            return
        if message["type"] == "start" and not self._started:
            self._started = True
            self._shares = message["shares"]
            self.profile = self._arriving if message["profile"] == "valid" else None
            self.profile_error = message.get("error", "")
            self._may_replace = message["profile"] in ("valid", "none")
        for found in message["measurements"]:
            with suppress(ValidationError):
                measurement = PowerLimitMeasurement.model_validate(found)
                self.measurements[measurement.power_limit] = measurement
        self.begun_w.update(message["begun_w"])
        for found in message["results"]:
            with suppress(ValidationError):
                result = Result.model_validate(found)
                self.results[result.selector] = result.power_limit

    def announce(self, limit_w: int) -> None:
        """Has others told that this limit, in W, is being measured, if there is a shared directory."""
        if self.shares:
            self.begun_w.add(limit_w)
            self._send({"type": "begin", "limit_w": limit_w})

    def publish(self, measurement: PowerLimitMeasurement) -> None:
        """Has a measurement shared, if there is a shared directory."""
        if self.shares:
            self._send({"type": "measured", "measurement": measurement.model_dump()})

    def publish_result(self, selector: str, power_limit_w: int) -> None:
        """Has a choice shared, if there is a shared directory."""
        if self.shares:
            self._send({"type": "result", "result": {"selector": selector, "power_limit": power_limit_w}})

    def save(self, measurements: list[PowerLimitMeasurement]) -> None:
        """Has the profile file written, if there is to be one."""
        if self._given["profile_path"] is not None:
            if self._socket is None:
                self._start()
            self._send({"type": "save", "text": profile_text(measurements), "replace": self._may_replace})

    def stop_sharing(self) -> None:
        """From now on, what is measured here is nobody else's business."""
        self._given["shared_dir"] = None
        self._shares = False
        self.measurements.clear()
        self.results.clear()

    def leave(self) -> None:
        """Lets the helper go when it has done what it was told; does not wait for that."""
        if self._socket is not None:
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_WR)
            self._leaving.append(self._socket)
            self._socket = None

    def hear(self) -> None:
        """Takes in what went wrong while a helper finished; costs nothing once it has."""
        for leaving in list(self._leaving):
            with suppress(BlockingIOError, ValueError, KeyError):
                while packet := transport.receive(leaving, socket.MSG_DONTWAIT):
                    message = transport.decode(packet, dict)
                    if message["type"] == "problem":
                        self._warn(message["message"])
                leaving.close()
                self._leaving.remove(leaving)

    def close(self, timeout_s: float = 5.0) -> None:
        """Waits until everything is written, but no longer than `timeout_s`."""
        self.leave()
        deadline_s = time.monotonic() + timeout_s
        while any(process.poll() is None for process in self._processes):
            if time.monotonic() > deadline_s:
                self._warn("its helper process has not finished writing")
                break
            self.hear()
            time.sleep(0.01)
        self.hear()

    def _send(self, message: dict[str, Any]) -> None:
        if self._socket is not None:
            try:
                self._socket.send(transport.encode(message), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
            except OSError as error:
                self._warn(f"its helper process takes no more: {error}")

    def _warn(self, text: str) -> None:
        if not self._warned:
            self._warned = True
            log.warning("power limit: profile and shared directory: %s; training goes on", text)

    def _start(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        transport.not_for_children(self._socket)
        transport.enlarge(self._socket)
        try:
            process = start_process(
                "pfo_fs.power_limit.files_process",
                {**self._given, "socket_fd": theirs.fileno()},
                pass_fds=(theirs.fileno(),),
            )
            self._processes = [*(older for older in self._processes if older.poll() is None), process]
        except OSError as error:
            self._warn(f"its helper process could not be started: {error}")
            self.leave()
        finally:
            theirs.close()
