"""Finds the kind of file system of a path, which decides between events and polling, and how often to poll."""

from __future__ import annotations

import os
from pathlib import Path

LOCAL_TYPES = frozenset(
    "ext2 ext3 ext4 xfs btrfs tmpfs ramfs zfs f2fs bcachefs jfs reiserfs overlay overlayfs aufs".split()
)
"""File systems on which every change is made by this host, so that inotify sees all of them."""


def filesystem_type(path: str | os.PathLike[str], mountinfo: str | None = None) -> str:
    """Returns the type of the file system that holds `path`, as the kernel names it (`nfs4`, `lustre`, `ext4`).

    Args:
        path: Any path; it need not exist.
        mountinfo: Content of `/proc/self/mountinfo`, for tests.
    """
    if mountinfo is None:
        try:
            mountinfo = Path("/proc/self/mountinfo").read_text(errors="replace")
        except OSError:
            return "unknown"
    real = os.path.realpath(path)
    best, kind = "", "unknown"
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        fields = before.split()
        if len(fields) < 5 or not after:
            continue
        point = fields[4].replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\")
        inside = real == point or real.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):  # the last mount on a point is the one on top
            best, kind = point, after.split()[0]
    return kind


def is_local(path: str | os.PathLike[str]) -> bool:
    """Returns whether all changes below `path` are made by this host."""
    return filesystem_type(path) in LOCAL_TYPES
