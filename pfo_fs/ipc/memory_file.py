"""Files without a name: in memory, or in a temporary folder where Python or the kernel has no files in memory."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress

_IN_MEMORY = "/dev/shm"  # noqa: S108  the file loses its name at once


def open_memory_file(name: str) -> int:
    """Returns the descriptor of a new, empty file, which is read and written; other processes do not inherit it.

    Pythons that were built for an old C library, as those of uv and conda, have no `os.memfd_create`.

    Args:
        name: Shown by tools that list open files.

    Raises:
        OSError: No file can be made, for example because no descriptor is free.
    """
    with suppress(AttributeError, OSError):
        return os.memfd_create(name, os.MFD_CLOEXEC)
    folder = _IN_MEMORY if os.access(_IN_MEMORY, os.W_OK) else None
    fd, path = tempfile.mkstemp(prefix=f"{name}-", dir=folder)
    os.unlink(path)
    return fd
