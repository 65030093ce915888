"""Files, for the next process on this host, that say what this package has set on a GPU and has not put back yet.

When a whole job is killed, clock process included, or when the driver refuses to put a setting back, the GPU keeps a
locked clock or a lowered power limit. The next clock process on that GPU, `pfo-fs reset-clocks` and `pfo-fs doctor
--fix` read the note and finish the undo. A note stands from before the first change until the undo is verified.
"""

from __future__ import annotations

import json
import math
import os
import stat
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from pfo_fs.ipc.process_end import is_stopped, start_of

if TYPE_CHECKING:
    from pfo_fs.device.gpu.interface import Gpu

SAME_W = 0.5
"""Power limits that differ by less are the same."""
_MAX_BYTES = 4096
MEMORY = "/dev/shm"  # noqa: S108  folders there are checked


def _folders() -> list[str]:
    """Returns the existing folders of notes that only this user can write; new notes go into the first.

    The folder is `PFO_FS_RUN_DIR`, or lies in memory, which a reboot empties. In memory, another user may have taken
    this user's name for a folder, so every folder whose name begins with that name counts, if it is this user's alone.
    """
    given = os.environ.get("PFO_FS_RUN_DIR")
    found = [given] if given else []
    with suppress(OSError):
        names = [] if given else os.listdir(MEMORY)
        found += [os.path.join(MEMORY, name) for name in names if f"{name}-".startswith(f"{_own_name()}-")]
    return sorted(filter(_is_own, found))


def _new_folder() -> str:
    """Makes a folder for notes.

    Raises:
        OSError: It cannot be made, or `PFO_FS_RUN_DIR` names a folder that is not this user's alone.
    """
    given = os.environ.get("PFO_FS_RUN_DIR")
    folder = given or os.path.join(MEMORY, _own_name())
    with suppress(FileExistsError):
        os.mkdir(folder, 0o700)
    if not given and not _is_own(folder):
        folder = tempfile.mkdtemp(prefix=f"{_own_name()}-", dir=MEMORY)  # another user has taken the name
    if not _is_own(folder):
        raise PermissionError(f"{folder} is not a folder of this user alone")
    return folder


def _own_name() -> str:
    return f"pfo-fs-{os.geteuid()}"


def _is_own(folder: str) -> bool:
    with suppress(OSError):
        info = os.lstat(folder)
        return stat.S_ISDIR(info.st_mode) and info.st_uid == os.geteuid() and not info.st_mode & 0o022
    return False


class Leftover(NamedTuple):
    """What a clock process has set, in W or MHz.

    Attributes:
        before: The value before; 0 MHz is the driver's default.
        value: What it has set or was about to set.
        earlier: What may be in force in its place: of power limits, the one before; of clocks, any that it has set.
        in_use: Whether that clock process still runs on this host; then it undoes the setting itself.
    """

    before: float
    value: float
    pid: int
    in_use: bool
    earlier: Sequence[float] = ()

    def is_of(self, value: float, same: float) -> bool:
        """Whether that clock process may have left a value that is in force now, give or take `same`."""
        return abs(self.nearest(value) - value) <= same

    def nearest(self, value: float) -> float:
        """Returns the nearest to `value` of what that clock process may have left."""
        return min((self.value, *self.earlier), key=lambda own: abs(own - value))

    @property
    def is_own(self) -> bool:
        return self.pid == os.getpid()


class UndoNote:
    """The note about one setting of one GPU. If it cannot be written, no power cap is set; all else works, without it.

    Args:
        uuid: The GPU's UUID; '' for no note.
        what: `power-limit` (in W) or `clock` (in MHz).
    """

    def __init__(self, uuid: str, what: str) -> None:
        self._uuid = uuid
        self._name = f"{what}-{uuid.replace('/', '_')}.json"

    def leftover(self) -> Leftover | None:
        """Returns the note; None if there is none that can be read."""
        with suppress(OSError, ArithmeticError, ValueError, LookupError, TypeError, RecursionError):
            found = self._read()
            before, value, pid = float(found["before"]), float(found["value"]), int(found["pid"])
            if math.isfinite(before) and math.isfinite(value) and before >= 0:
                began = "" if is_stopped(pid) else start_of(pid)  # a stopped process undoes nothing
                in_use = began != "" and began == found["began"]
                return Leftover(before, value, pid, in_use, [float(each) for each in found.get("earlier") or ()])
        return None

    def limit_before_w(self, gpu: Gpu) -> float:
        """Returns the power limit that was in force before a process of this package has set one, in W.

        Raises:
            DeviceError: The GPU does not tell its power limit.
        """
        now_w, left, (lowest_w, highest_w) = gpu.power_limit_w(), self.leftover(), gpu.power_limit_range_w()
        is_ours = left is not None and left.is_of(now_w, SAME_W) and lowest_w <= left.before <= highest_w
        return left.before if left is not None and is_ours else now_w

    def write(self, before: float, value: float, earlier: Sequence[float] = ()) -> bool:
        """Notes that `value` follows `earlier`, and that `before` is to be put back; returns whether it is noted."""
        with suppress(OSError):
            if not self._uuid:
                return False
            path = os.path.join(next(iter(_folders()), None) or _new_folder(), self._name)
            pid = os.getpid()
            temporary = f"{path}.{pid}"
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
            with open(os.open(temporary, flags, 0o600), "w") as file:
                noted = {"before": before, "value": value, "earlier": earlier, "pid": pid, "began": start_of(pid)}
                json.dump(noted, file)
            os.replace(temporary, path)
            return True
        return False

    def remove(self) -> None:
        """Removes the note, unless another process that still runs has written it."""
        left = self.leftover()
        if left is None or left.is_own or not left.in_use:
            for path in self._paths():
                with suppress(OSError):
                    os.unlink(path)

    def _paths(self) -> list[str]:
        """Returns where the note lies; in more than one place if processes made folders at the same time."""
        paths = (os.path.join(folder, self._name) for folder in _folders())
        return [path for path in paths if os.path.lexists(path)]

    def _read(self) -> dict[str, Any]:
        fd = os.open(self._paths()[0], os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(fd, "rb") as file:
            return dict(json.loads(file.read(_MAX_BYTES)))


def clock_note(uuid: str) -> UndoNote:
    return UndoNote(uuid, "clock")


def limit_note(uuid: str) -> UndoNote:
    return UndoNote(uuid, "power-limit")
