"""Writes the files that a user asked for, completely or not at all, and never replaces a pipe or a device."""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from pfo_fs.errors import ConfigError

_STREAMS = {"/dev/stdout": 1, "/dev/stderr": 2}


@contextmanager
def output_file(path: str | os.PathLike[str], replaces: str = "") -> Iterator[TextIO]:
    """Opens a file for writing; it appears at its path when the block ends without an exception.

    If the path is /dev/stdout or the like, or not a plain file (a pipe, for example), the text is written into it. A
    link stays, and the file that it leads to is replaced and keeps its mode. If `replaces` is given, a file is replaced
    only if it is empty, or its first 1,000 bytes hold that text.

    Raises:
        ConfigError: The file cannot be written, or would replace a file that it must not.
    """
    try:
        with _opened(path, replaces.encode()) as file:
            yield file
    except OSError as error:
        missing = isinstance(error, FileNotFoundError)
        reason = f"the folder {Path(path).parent} is not there" if missing else error.strerror
        raise ConfigError(f"{path}: cannot be written: {reason}") from error


@contextmanager
def _opened(path: str | os.PathLike[str], replaces: bytes) -> Iterator[TextIO]:
    stream = _STREAMS.get(os.fspath(path))
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        mode = stat.S_IFREG
    if stream or not stat.S_ISREG(mode):
        with open(os.dup(stream) if stream else path, "w", encoding="utf-8", newline="") as file:
            yield file
        return
    place = Path(os.path.realpath(path))
    if replaces and place.exists():
        with open(place, "rb") as old:
            if (head := old.read(1000)) and replaces not in head:
                raise ConfigError(f"{path}: this command has not written it, and leaves it; name another file by -o")
    partial = place.with_name(f".{place.name}.{os.getpid()}.partial")
    try:
        with open(partial, "w", encoding="utf-8", newline="") as file:
            if stat.S_IMODE(mode):
                with suppress(OSError):  # refused by file systems that give all files their rights themselves
                    os.fchmod(file.fileno(), stat.S_IMODE(mode))
            yield file
        partial.replace(place)
    finally:
        partial.unlink(missing_ok=True)
