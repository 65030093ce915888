"""The file operations of a power-limit optimizer's helper: each operation is data, and one class carries them out.

`power_limit_state.py` decides which operations are needed and never blocks; they run in a worker thread, which may
hang with the file system.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from pfo_fs.errors import StoreError
from pfo_fs.store import Files, OffSwitch, is_local, layout
from pfo_fs.store.power_limit_folder import (
    Knob,
    KnobChoice,
    KnobMeasurement,
    PowerLimitFolder,
    PowerLimitUpdates,
)

MAX_PROFILE_BYTES = 1 << 20


@dataclass(frozen=True)
class ReadProfile:
    """Read the profile, at most one byte more than `MAX_PROFILE_BYTES`; result: bytes, None if there is no file."""

    path: str


@dataclass(frozen=True)
class WriteProfile:
    """Write the profile, complete or not at all."""

    path: str
    content: bytes
    replace: bool


@dataclass(frozen=True)
class OpenFolder:
    """Use a folder of the shared directory; result: whether all changes in it are made by this host."""

    shared_dir: str
    key: str
    knob: Knob = "power_limit"


@dataclass(frozen=True)
class PollUpdates:
    """Read what other jobs have written since the last call; result: `PowerLimitUpdates`."""


@dataclass(frozen=True)
class AnnounceLimit:
    """Tell other jobs which level this one measures."""

    level: int


@dataclass(frozen=True)
class PublishMeasurement:
    """Share a measurement."""

    measurement: KnobMeasurement


@dataclass(frozen=True)
class PublishChoice:
    """Share a choice; result: the choice that came first, None if it cannot be read."""

    selector: str
    level: int


@dataclass(frozen=True)
class LookAtSwitch:
    """Look whether all jobs of a directory are off; result: `Switched`."""

    shared_dir: str


@dataclass(frozen=True)
class Switched:
    """Whether all jobs are off, and whether all changes in the directory are made by this host."""

    off: bool
    local: bool


PowerLimitOperation: TypeAlias = (
    LookAtSwitch
    | ReadProfile
    | WriteProfile
    | OpenFolder
    | PollUpdates
    | AnnounceLimit
    | PublishMeasurement
    | PublishChoice
)
PowerLimitResult: TypeAlias = "bytes | bool | Switched | PowerLimitUpdates | KnobChoice | None"


class PowerLimitOperations:
    """Carries operations out, one after the other; every call may block for as long as the file system does."""

    def __init__(self) -> None:
        self._folder: PowerLimitFolder | None = None
        self._switch: OffSwitch | None = None

    def execute(self, operation: PowerLimitOperation) -> PowerLimitResult:
        """Carries one operation out.

        Raises:
            StoreError: The file system refuses, or gives no stable answer; the last argument is a text for the log.
        """
        match operation:
            case ReadProfile(path):
                try:
                    return read_file(Path(path), MAX_PROFILE_BYTES + 1)
                except OSError as error:
                    text = f"{path} cannot be read, and will not be written: {error.strerror or error}"
                    raise StoreError(error.errno, text) from error
            case WriteProfile(path, content, replace):
                try:
                    write_file(Path(path), content, replace=replace)
                except OSError as error:
                    text = f"{path} cannot be written: {error.strerror or error}"
                    raise StoreError(error.errno, text) from error
            case OpenFolder(shared_dir, key, knob):
                files = Files(shared_dir, create=True)
                self._folder = PowerLimitFolder(files, key, knob)
                files.make_folder(layout.OFF)  # an NFS client would remember for long that it was not there
                return is_local(shared_dir)
            case LookAtSwitch(shared_dir):
                if self._switch is None:
                    self._switch = OffSwitch(Files(shared_dir))
                return Switched(self._switch.read().everything, is_local(shared_dir))
            case PollUpdates():
                return self._open_folder.updates()
            case AnnounceLimit(level):
                self._open_folder.announce(level)
            case PublishMeasurement(measurement):
                self._open_folder.publish(measurement)
            case PublishChoice(selector, level):
                return self._open_folder.publish_choice(selector, level)
        return None

    @property
    def _open_folder(self) -> PowerLimitFolder:
        if self._folder is None:
            raise StoreError(errno.ENOENT, "the folder of measurements is not open")
        return self._folder


def read_file(path: Path, limit: int) -> bytes | None:
    """Returns the first `limit` bytes of a file; None if there is no file.

    Raises:
        OSError: The file cannot be read, or is not a plain file.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # opening a FIFO must not wait for a writer
    except FileNotFoundError:
        return None
    with open(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "it is not a plain file")
        return file.read(limit)


def write_file(path: Path, content: bytes, *, replace: bool) -> None:
    """Writes a file, complete or not at all.

    Args:
        path: The file.
        content: Its bytes.
        replace: Whether to replace a file that is there.

    Raises:
        OSError: The file cannot be written, or a file is there that must not be replaced; the old file stays.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")
    try:
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if replace:
            temporary.replace(path)
        else:
            os.link(temporary, path)
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
