"""What the directory is: its file system, the options of its mount, owners and modes."""

import os
import re
import stat
from pathlib import Path

from pfo_fs.doctor.lines import Check, line
from pfo_fs.store import LOCAL_TYPES, Mount, layout

_PASSING = frozenset(("tmpfs", "ramfs", "overlay", "overlayfs", "aufs"))
_NETWORK = frozenset(
    "nfs nfs4 cifs smb3 lustre beegfs gpfs ceph fuse.ceph fuse.glusterfs glusterfs afs pvfs2 orangefs gfs2 ocfs2 9p "
    "virtiofs fuse.juicefs wekafs fuse.sshfs fuse.s3fs fuse.gcsfuse".split()
)
_LONG_CACHE_S = 60

# Options that do harm: (harm, kinds of file systems, pattern of the option).
_HARM = (
    ("local-locks", r"nfs4?", r"nolock|local_lock=(all|flock|posix)"),
    ("local-locks", r"lustre", r"localflock|noflock"),
    ("local-locks", r"cifs|smb3", r"nobrl"),
    ("local-locks", r"ocfs2|gfs2", r"localflocks"),
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
    return [line("file system", _kind(mount.kind), where), *_options(mount)]


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
        return [line("mount options", "ok", ",".join(mount.options) or "unknown")]
    return [line("mount options", harm, ", ".join(dict.fromkeys(named))) for harm, named in found.items()]


_FOLDERS = (layout.JOBS, layout.ARCHIVE, layout.LEADERS, layout.OFF)


def check_rights(root: Path) -> list[Check]:
    """Looks at the directory, the folders above it, and the folders in it."""
    found = os.stat(root)
    lines = [judge_root(found, may_write=os.access(root, os.W_OK | os.X_OK, effective_ids=True))]
    modes = {above: os.stat(above).st_mode for above in root.parents}
    loose = [str(above) for above, mode in modes.items() if mode & stat.S_IWOTH and not mode & stat.S_ISVTX]
    if loose:
        lines.append(line("rights", "above", f"{', '.join(loose)}: other users may write there"))
    present = {name: os.lstat(root / name) for name in sorted(set(os.listdir(root)) & set(_FOLDERS))}
    # The kernel is asked, because an ACL may say something else than the mode.
    allowed = [name for name in present if os.access(root / name, os.R_OK | os.W_OK | os.X_OK, effective_ids=True)]
    return [*lines, judge_folders(found, present, allowed)]


def judge_root(found: os.stat_result, *, may_write: bool) -> Check:
    text = _shown(found)
    if found.st_mode & stat.S_IWOTH:
        return line("rights", "open", text)
    if not may_write:
        return line("rights", "not-mine", f"{text}; this user is {os.geteuid()}")
    if not found.st_mode & stat.S_IWGRP:
        return line("rights", "private", text)
    return line("rights", "group" if found.st_mode & stat.S_ISGID else "no-setgid", text)


def judge_folders(root: os.stat_result, folders: dict[str, os.stat_result], allowed: list[str]) -> Check:
    """Returns the line about the folders in the directory, by their names; `allowed`: where this user may write."""
    if not folders:
        return line("folders in it", "none", "none yet")
    wide = [name for name, found in folders.items() if found.st_mode & stat.S_IWOTH]
    if wide:
        return line("folders in it", "wide", _listed(wide, folders))
    if root.st_mode & stat.S_IWGRP:
        narrow = [
            name for name, found in folders.items() if not found.st_mode & stat.S_IWGRP or found.st_gid != root.st_gid
        ]
        if narrow:
            return line("folders in it", "narrow", _listed(narrow, folders))
    closed = [name for name in folders if name not in allowed]
    if closed:
        return line("folders in it", "closed", f"{_listed(closed, folders)}; this user is {os.geteuid()}")
    return line("folders in it", "ok", ", ".join(f"{name}/" for name in folders))


def _shown(found: os.stat_result) -> str:
    return f"{stat.filemode(found.st_mode)}, user {found.st_uid}, group {found.st_gid}"


def _listed(names: list[str], folders: dict[str, os.stat_result]) -> str:
    return "; ".join(f"{name}/ {_shown(folders[name])}" for name in names)
