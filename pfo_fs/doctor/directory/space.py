"""Free bytes and inodes."""

from __future__ import annotations

import os
from pathlib import Path

from pfo_fs.doctor.catalogue_directory import SPACE
from pfo_fs.doctor.lines import Check

_LOW_BYTES = 256 << 20
_LOW_FILES = 20_000
_NONE_BYTES = 256 << 10
_NONE_FILES = 16


def check_space(root: Path) -> Check:
    """Asks the file system how much is free for this user."""
    found = os.statvfs(root)
    return judge_space(found.f_bavail * found.f_frsize, found.f_favail if found.f_files else None)


def judge_space(free_bytes: int, free_files: int | None) -> Check:
    """Returns the line.

    Args:
        free_bytes: Bytes that this user may still use.
        free_files: Inodes that this user may still use; None if the file system has no fixed number of them.
    """
    text = f"{free_bytes / 2**20:,.0f} MiB, " + ("inodes as needed" if free_files is None else f"{free_files:,} inodes")
    files = _LOW_FILES if free_files is None else free_files
    if free_bytes < _NONE_BYTES or files < _NONE_FILES:
        return SPACE.check("none", text)
    return SPACE.check("low" if free_bytes < _LOW_BYTES or files < _LOW_FILES else "ok", text)
