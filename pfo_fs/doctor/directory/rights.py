"""Who may do what in the directory: owners and modes."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from pfo_fs.doctor.lines import Check, line
from pfo_fs.store import layout

_FOLDERS = (layout.JOBS, layout.ARCHIVE, layout.LEADERS, layout.OFF)


def check_rights(root: Path) -> list[Check]:
    """Looks at the directory, the folders above it, and those in it."""
    found = os.stat(root)
    lines = [judge_root(found, may_write=os.access(root, os.W_OK | os.X_OK, effective_ids=True))]
    loose = [str(above) for above in root.parents if _others_may_replace(os.stat(above))]
    if loose:
        lines.append(line("rights", "above", f"{', '.join(loose)}: other users may write there"))
    present = {name: os.lstat(root / name) for name in sorted(set(os.listdir(root)) & set(_FOLDERS))}
    # By asking, because an ACL may say something else than the mode.
    allowed = [name for name in present if os.access(root / name, os.R_OK | os.W_OK | os.X_OK, effective_ids=True)]
    return [*lines, judge_folders(found, present, allowed)]


def judge_root(found: os.stat_result, *, may_write: bool) -> Check:
    """Returns the line about the directory itself, from its owner and mode."""
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


def _others_may_replace(found: os.stat_result) -> bool:
    return bool(found.st_mode & stat.S_IWOTH) and not found.st_mode & stat.S_ISVTX


def _shown(found: os.stat_result) -> str:
    return f"{stat.filemode(found.st_mode)}, user {found.st_uid}, group {found.st_gid}"


def _listed(names: list[str], folders: dict[str, os.stat_result]) -> str:
    return "; ".join(f"{name}/ {_shown(folders[name])}" for name in names)
