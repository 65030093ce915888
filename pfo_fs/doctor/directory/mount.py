"""The file system of the directory, and options of its mount that do harm."""

from __future__ import annotations

import re

from pfo_fs.doctor.catalogue_directory import FILE_SYSTEM, OPTIONS
from pfo_fs.doctor.lines import Check
from pfo_fs.store import LOCAL_TYPES, Mount

_PASSING = frozenset(("tmpfs", "ramfs", "overlay", "overlayfs", "aufs"))
_NETWORK = frozenset(
    "nfs nfs4 cifs smb3 lustre beegfs gpfs ceph fuse.ceph fuse.glusterfs glusterfs afs pvfs2 orangefs gfs2 ocfs2 9p "
    "virtiofs fuse.juicefs wekafs fuse.sshfs fuse.s3fs fuse.gcsfuse".split()
)
_LONG_CACHE_S = 60

# For each harm, the options that do it, as (kinds of file systems, pattern of the option).
_HARM = (
    ("soft", r"nfs4?|cifs|smb3", r"soft|softerr"),
    ("stale", r"nfs4?", r"nocto"),
    ("stale", r"cifs|smb3", r"cache=loose"),
    ("stale", r"9p", r"cache=(loose|fscache|mmap)"),
    ("old-rename", r"fuse\.(sshfs|s3fs|gcsfuse)", r"rw|ro"),
)
_CACHE_TIME = re.compile(r"(?:actimeo|ac(?:dir|reg)max|acdirmin|acregmin)=(\d+)")


def judge_mount(mount: Mount) -> list[Check]:
    """Returns the lines about a mount: one about its kind, and one for each harm of its options."""
    where = f"{mount.kind}, {mount.source} on {mount.point}"
    return [FILE_SYSTEM.check(_kind(mount.kind), where), *_options(mount)]


def _kind(kind: str) -> str:
    if kind in _PASSING:
        return "passing"
    if kind in LOCAL_TYPES:
        return "local"
    return "network" if kind in _NETWORK else "unknown"


def _options(mount: Mount) -> list[Check]:
    found: dict[str, list[str]] = {}
    if "ro" in mount.options:
        found["read-only"] = ["ro"]
    for harm, kinds, pattern in _HARM:
        if re.fullmatch(kinds, mount.kind):
            named = [option for option in mount.options if re.fullmatch(pattern, option)]
            if named:
                found.setdefault(harm, []).extend(mount.kind if harm == "old-rename" else option for option in named)
    slow = [
        option for option in mount.options if (time := _CACHE_TIME.fullmatch(option)) and int(time[1]) > _LONG_CACHE_S
    ]
    if slow:
        found["long-caches"] = slow
    if not found:
        return [OPTIONS.check("ok", ",".join(mount.options) or "unknown")]
    return [OPTIONS.check(harm, ", ".join(dict.fromkeys(named))) for harm, named in found.items()]
