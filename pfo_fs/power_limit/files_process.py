"""The helper process that reads and writes the profile file and the shared directory of a power-limit optimizer.

Started as `python -m pfo_fs.power_limit.files_process` by `files.ProfileFiles`; a mount that hangs hangs this process.
Messages are packets of `wire`. It first says what there is, then does what it is told, tells news of the shared
directory, and leaves when training closes the socket.
"""

from __future__ import annotations

import os
import secrets
import select
import signal
import socket
import stat
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from pfo_fs.errors import PlanError, StoreError
from pfo_fs.ipc import transport
from pfo_fs.ipc.spawn import given_arguments
from pfo_fs.power_limit.folder import MeasurementFolder, Result
from pfo_fs.power_limit.measurements import MAX_PROFILE_BYTES, PowerLimitMeasurement, parse_profile
from pfo_fs.store import Files, is_local

_PER_PACKET = 500
"""Measurements."""


def read_profile(path: Path) -> list[PowerLimitMeasurement] | None:
    """Returns the measurements of a profile; None if there is no file.

    Raises:
        OSError: It cannot be read, or is no plain file.
        PlanError: It is no profile.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a FIFO must not wait for a writer
    except FileNotFoundError:
        return None
    with open(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(f"{path} is no plain file")
        return parse_profile(file.read(MAX_PROFILE_BYTES + 1), str(path))


def write_file(path: Path, text: str, *, replace: bool) -> None:
    """Puts a file in place, whole or not at all.

    Args:
        path: The file.
        text: Its content.
        replace: Whether it may take the place of one that is there.

    Raises:
        OSError: It cannot be written, or is there and must not be replaced; what was there stays.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")
    try:
        with temporary.open("x", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        if replace:
            temporary.replace(path)
        else:
            os.link(temporary, path)
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


class Helper:
    """See the module's docstring.

    Args:
        trainer: The socket to training.
        profile_path: The profile, if there is one.
        shared_dir: The shared directory, if there is one.
        key: What is measured, for the shared directory.
    """

    def __init__(self, trainer: socket.socket, profile_path: str | None, shared_dir: str | None, key: str) -> None:
        self._trainer = trainer
        self._profile_path = Path(profile_path) if profile_path else None
        self._shared_dir = shared_dir
        self._key = key
        self._folder: MeasurementFolder | None = None
        self._told = ""

    def serve(self) -> None:
        """Serves until training closes the socket."""
        start: dict[str, Any] = {"type": "start", "profile": "none"}
        if self._profile_path is not None:
            try:
                found = read_profile(self._profile_path)
                start["profile"] = "none" if found is None else "valid"
                for at in range(0, len(found or ()), _PER_PACKET):
                    lot = [measurement.model_dump() for measurement in (found or ())[at : at + _PER_PACKET]]
                    self._tell({"type": "profile", "measurements": lot}, waits=True)
            except PlanError as error:
                start["profile"], start["error"] = "wrong", str(error)
            except OSError as error:
                start["profile"] = "unknown"
                text = f"{self._profile_path} cannot be read, and will not be written: {error.strerror or error}"
                self._tell_problem(text)
        interval_s = None
        if self._shared_dir is not None:
            try:
                self._folder = MeasurementFolder(Files(self._shared_dir, create=True), self._key)
                interval_s = 0.5 if is_local(self._shared_dir) else 2.0
            except StoreError as error:
                self._tell_problem(f"measurements are not shared: {error.args[-1]}")
        self._tell({**start, "shares": self._folder is not None, **self._news()}, waits=True)
        waiting = select.poll()
        waiting.register(self._trainer, select.POLLIN)
        while True:
            if waiting.poll(None if interval_s is None else interval_s * 1000):
                packet = transport.receive(self._trainer)
                if not packet:
                    return
                self._obey(transport.decode(packet, dict))
            news = self._news()
            if any(news.values()):
                self._tell({"type": "news", **news})

    def _news(self) -> dict[str, Any]:
        if self._folder is not None:
            try:
                news = self._folder.news()
                return {
                    "measurements": [measurement.model_dump() for measurement in news.measurements],
                    "results": [result.model_dump() for result in news.results],
                    "begun_w": news.begun_w,
                }
            except StoreError as error:
                self._tell_problem(f"measurements are not shared: {error.args[-1]}")
        return {"measurements": [], "results": [], "begun_w": []}

    def _obey(self, message: dict[str, Any]) -> None:
        try:
            if message["type"] == "save" and self._profile_path is not None:
                write_file(self._profile_path, message["text"], replace=message["replace"])
            elif message["type"] == "begin" and self._folder is not None:
                self._folder.announce(int(message["limit_w"]))
            elif message["type"] == "measured" and self._folder is not None:
                self._folder.publish(PowerLimitMeasurement.model_validate(message["measurement"]))
            elif message["type"] == "result" and self._folder is not None:
                result = self._folder.publish_result(Result.model_validate(message["result"]))
                if result is not None:
                    self._tell({"type": "news", "measurements": [], "results": [result.model_dump()], "begun_w": []})
        except StoreError as error:
            self._tell_problem(f"measurements are not shared: {error.args[-1]}")
        except (OSError, ValueError) as error:
            what = self._profile_path if message["type"] == "save" else "what was measured"
            self._tell_problem(f"{what} cannot be written: {getattr(error, 'strerror', None) or error}")

    def _tell_problem(self, text: str) -> None:
        if text != self._told:
            self._told = text
            self._tell({"type": "problem", "message": text})

    def _tell(self, message: dict[str, Any], *, waits: bool = False) -> None:
        """A trainer that is no more misses it, and one that does not read, unless this waits."""
        with suppress(OSError):
            self._trainer.send(transport.encode(message), socket.MSG_NOSIGNAL | (0 if waits else socket.MSG_DONTWAIT))


def main() -> int:
    """Runs the helper."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    given = given_arguments()
    trainer = socket.socket(fileno=given["socket_fd"])
    Helper(trainer, given["profile_path"], given["shared_dir"], given["key"]).serve()
    return 0


if __name__ == "__main__":
    sys.exit(main())
