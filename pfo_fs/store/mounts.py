"""Finds the kind of file system of a path, which decides between events and polling, and how often to poll."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

LOCAL_TYPES = frozenset(
    "ext2 ext3 ext4 xfs btrfs tmpfs ramfs zfs f2fs bcachefs jfs reiserfs overlay overlayfs aufs".split()
)
"""File systems on which every change is made by this host, so that inotify sees all of them."""


class Mount(NamedTuple):
    """One mount, from the kernel's table.

    Attributes:
        point: Where it is mounted; empty if it was not found.
        kind: The type of the file system, as the kernel names it (`nfs4`, `lustre`, `ext4`), or `unknown`.
        source: What is mounted: a server and its path, or a device.
        options: All options, of the mount and of the file system.
    """

    point: str = ""
    kind: str = "unknown"
    source: str = ""
    options: tuple[str, ...] = ()


def mount_of(real_path: str, mountinfo: str | None = None) -> Mount:
    """Returns the mount that holds a path; makes no call on the path's file system, so it cannot hang.

    Args:
        real_path: An absolute path without symbolic links; it need not exist.
        mountinfo: Content of `/proc/self/mountinfo`, for tests.
    """
    if mountinfo is None:
        try:
            mountinfo = Path("/proc/self/mountinfo").read_text(errors="replace")
        except OSError:
            return Mount()
    best = Mount()
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        fields, of_kind = before.split(), after.split()
        if len(fields) < 6 or not of_kind:
            continue
        point = fields[4].replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\")
        inside = real_path == point or real_path.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best.point):  # the last mount on a point is the one on top
            options = [*fields[5].split(","), *",".join(of_kind[2:3]).split(",")]
            best = Mount(point, of_kind[0], "".join(of_kind[1:2]), tuple(dict.fromkeys(filter(None, options))))
    return best


def filesystem_type(path: str | os.PathLike[str], mountinfo: str | None = None) -> str:
    """Returns the type of the file system that holds `path`, as the kernel names it (`nfs4`, `lustre`, `ext4`).

    Args:
        path: Any path; it need not exist.
        mountinfo: Content of `/proc/self/mountinfo`, for tests.
    """
    return mount_of(os.path.realpath(path), mountinfo).kind


def is_local(path: str | os.PathLike[str]) -> bool:
    """Returns whether all changes below `path` are made by this host."""
    return filesystem_type(path) in LOCAL_TYPES
