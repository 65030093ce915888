"""Files that a person asked for: whole or not at all, and never in place of something that is no file."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO


@contextmanager
def output_file(path: str | os.PathLike[str]) -> Iterator[TextIO]:
    """Opens a file to be written, which is at its place when the block ends without an exception.

    What is there and is no plain file, such as /dev/stdout or a pipe, is written into. A link stays, and the file that
    it leads to is replaced.

    Args:
        path: The file.

    Raises:
        OSError: It cannot be written.
    """
    try:
        plain = stat.S_ISREG(os.stat(path).st_mode)
    except FileNotFoundError:
        plain = True
    if not plain:
        with open(path, "w", encoding="utf-8", newline="") as file:
            yield file
        return
    place = Path(os.path.realpath(path))
    partial = place.with_name(f".{place.name}.{os.getpid()}.partial")
    try:
        with open(partial, "w", encoding="utf-8", newline="") as file:
            yield file
        partial.replace(place)
    finally:
        partial.unlink(missing_ok=True)
