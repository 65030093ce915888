"""Writes the files that a user asked for: whole or not at all, and never in place of a pipe or a device."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

_STREAMS = re.compile(r"/dev/(?:(stdout|stderr)|fd/(\d{1,4}))")


@contextmanager
def output_file(path: str | os.PathLike[str]) -> Iterator[TextIO]:
    """Opens a file to be written, which is at its place when the block ends without an exception.

    What is there and is not a plain file, such as a pipe, is written into, and so is what /dev/stdout stands for. A
    link stays, and the file that it leads to is replaced, with its mode.

    Args:
        path: The file.

    Raises:
        OSError: It cannot be written.
    """
    stream = _STREAMS.fullmatch(os.fspath(path))
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        mode = stat.S_IFREG
    if stream or not stat.S_ISREG(mode):
        into = os.dup({"stdout": 1, "stderr": 2}.get(stream[1]) or int(stream[2])) if stream else path
        with open(into, "w", encoding="utf-8", newline="") as file:
            yield file
        return
    place = Path(os.path.realpath(path))
    partial = place.with_name(f".{place.name}.{os.getpid()}.partial")
    try:
        with open(partial, "w", encoding="utf-8", newline="") as file:
            if stat.S_IMODE(mode):
                os.fchmod(file.fileno(), stat.S_IMODE(mode))
            yield file
        partial.replace(place)
    finally:
        partial.unlink(missing_ok=True)
