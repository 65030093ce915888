"""A file, for the next job on this host, with the power limit that was in force before this package changed it.

When a whole job is killed, clock process included, its power limit stays in force. The next job must not mistake it for
the limit that the site has chosen. The note is valid only while the limit that it names as set last is still in force;
otherwise another process has set one since.
"""

from __future__ import annotations

import json
import math
import os
import stat
from contextlib import suppress
from typing import Any, NamedTuple

_MAX_BYTES = 4096


def _folder() -> str:
    """Returns a folder that only this user can write: `PFO_FS_RUN_DIR`, or one in memory, which a reboot empties.

    Raises:
        OSError: The folder cannot be made, or other users can write to it.
    """
    folder = os.environ.get("PFO_FS_RUN_DIR") or f"/dev/shm/pfo-fs-{os.geteuid()}"  # noqa: S108  checked below
    with suppress(FileExistsError):
        os.mkdir(folder, 0o700)
    info = os.lstat(folder)
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.geteuid() or info.st_mode & 0o022:
        raise PermissionError(f"{folder} is not a folder of this user alone")
    return folder


def _began(pid: int) -> str:
    """Returns a process's start time, which a later one with the same id does not share; '' if it has ended."""
    with suppress(OSError, IndexError), open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
        return file.read(_MAX_BYTES).rpartition(")")[2].split()[19]
    return ""


class Left(NamedTuple):
    """A limit that a clock process has set.

    Attributes:
        before_w: The limit in force before, in W.
        pid: The id of that clock process.
        in_use: Whether that clock process still runs on this host; it will then restore the limit itself.
    """

    before_w: float
    pid: int
    in_use: bool


class LimitNote:
    """The note about one GPU. If it cannot be written, power limits still work, but the next job has no note.

    Args:
        uuid: The GPU's UUID.
    """

    def __init__(self, uuid: str) -> None:
        self._name = f"power-limit-{uuid.replace('/', '_')}.json"

    def left(self, in_force_w: float) -> Left | None:
        """Returns the note if it says that a clock process has set `in_force_w`, in W; else None."""
        with suppress(OSError, ValueError, KeyError, TypeError):
            found = self._read()
            before_w, set_w, pid = float(found["before_w"]), float(found["set_w"]), int(found["pid"])
            if math.isfinite(before_w) and abs(set_w - in_force_w) < 0.5:
                began = _began(pid)
                return Left(before_w, pid, began != "" and began == found["began"])
        return None

    def write(self, before_w: float, set_w: float) -> None:
        """Notes that `set_w` is about to be set where `before_w` was in force, both in W."""
        with suppress(OSError):
            path = os.path.join(_folder(), self._name)
            pid = os.getpid()
            temporary = f"{path}.{pid}"
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
            with open(os.open(temporary, flags, 0o600), "w") as file:
                json.dump({"before_w": before_w, "set_w": set_w, "pid": pid, "began": _began(pid)}, file)
            os.replace(temporary, path)

    def remove(self, pid: int | None = None) -> None:
        """Removes the note, if process `pid`, or this process if None, has written it."""
        with suppress(OSError, ValueError, KeyError, TypeError):
            if self._read()["pid"] == (pid or os.getpid()):
                os.unlink(os.path.join(_folder(), self._name))

    def _read(self) -> dict[str, Any]:
        fd = os.open(os.path.join(_folder(), self._name), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(fd, "rb") as file:
            return dict(json.loads(file.read(_MAX_BYTES)))
