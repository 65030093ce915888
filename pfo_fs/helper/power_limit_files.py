"""The files of a power-limit optimizer: its profile, and the levels that jobs with the same load share.

The worker carries out what training asks for as it came (`ipc/messages.py`); the result is the messages for training.
An error of these files is one of them, since training logs it and goes on: no operation is tried again.
"""

from __future__ import annotations

import errno
import logging
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeAlias

from pfo_fs.ipc import messages as m
from pfo_fs.store import Files, layout
from pfo_fs.store.power_limit_folder import KNOBS, MAX_PROFILE_BYTES, PowerLimitFolder, PowerLimitUpdates

Asked: TypeAlias = m.ReadProfile | m.SaveProfile | m.ShareLevels


class PowerLimitFiles:
    """Carries out what the training process of rank 0 asks for; every call may block.

    Args:
        root: The shared directory.
    """

    def __init__(self, root: str) -> None:
        self._root = root
        self._folder: PowerLimitFolder | None = None
        self._told: list[m.Message] = []
        self._problem = ""

    def execute(self, asked: Asked) -> list[m.Message]:
        """Returns the messages for training, of which the last one is the answer."""
        match asked:
            case m.ReadProfile(path=path):
                self._told.append(self._read(path))
            case m.SaveProfile(path=path, content=content, replace=replace):
                with self._problems_told(f"{path} cannot be written"):
                    write_file(Path(path), content, replace=replace)
                self._told.append(m.ProfileSaved())
            case m.ShareLevels():
                self._told.append(self._share(asked))
        told, self._told = self._told, []
        return told

    def _read(self, path: str) -> m.ProfileRead:
        with self._problems_told(f"{path} cannot be read, and will not be written"):
            content = read_file(Path(path), MAX_PROFILE_BYTES + 1)
            return m.ProfileRead(profile="none") if content is None else m.ProfileRead(profile="read", content=content)
        return m.ProfileRead(profile="unknown")

    def _share(self, levels: m.ShareLevels) -> m.SharedLevels:
        new = PowerLimitUpdates([], [])
        with self._problems_told("measurements are not shared"):
            if self._folder is None:
                files = Files(self._root, create=True)
                self._folder = PowerLimitFolder(files, levels.key, levels.knob)
                files.make_folder(layout.OFF)  # an NFS client would remember for long that it was not there
            for level in levels.begun:
                self._folder.announce(level)
            for level, energy_j, time_s in levels.measurements:
                self._folder.publish(KNOBS[levels.knob].at(level, energy=energy_j, time=time_s))
            new = self._folder.updates()
        found = [(one.level, one.energy, one.time) for one in new.measurements]
        return m.SharedLevels(measurements=found, begun=new.begun, can_share=self._folder is not None)

    @contextmanager
    def _problems_told(self, what: str) -> Iterator[None]:
        """Makes of an error of the file system a message to training, unless it is the same as the last one."""
        try:
            yield
        except OSError as error:
            text = f"{what}: {error.strerror or error}"
            if text != self._problem:
                self._problem = text
                self._told.append(m.LogLine(level=logging.WARNING, message=text))


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
