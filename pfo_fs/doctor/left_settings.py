"""GPUs that were left with a locked clock or another power limit, and their reset."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from pfo_fs.device.clocks.undo import SAME_W, reset_left
from pfo_fs.device.clocks.undo_note import Left, clock_note, limit_note
from pfo_fs.device.gpu.interface import Gpu, GpuSettings
from pfo_fs.doctor.lines import Check, line
from pfo_fs.errors import DeviceError

NOTED = "a job has noted that it could not reset the clock; the driver does not show whether it is still locked"
_FIX_FOR_S = 10.0
_MODULE = b"pfo_fs.device.clock_process"


class Holder(NamedTuple):
    """A running clock process, and the GPU that it sets; None if it does not say."""

    pid: int
    spec: str | None


def running_clock_processes(proc: Path = Path("/proc")) -> list[Holder]:
    """Returns the clock processes of all users on this host, as far as the kernel shows them."""
    found = []
    for entry in proc.iterdir():
        if entry.name.isdecimal():
            with suppress(OSError):
                words = (entry / "cmdline").read_bytes().split(b"\0")
                if _MODULE in words:  # the GPU follows
                    spec = os.fsdecode(words[words.index(_MODULE) + 1])
                    found.append(Holder(int(entry.name), spec or None))
    return found


def check_left(specs: Sequence[str], gpus: Sequence[Gpu], *, fix: bool) -> list[Check]:
    """Looks at each GPU, by name and open; resets those that were left and that no job holds, if `fix`."""
    running = [holder for holder in running_clock_processes() if holder.pid != os.getpid()]
    lines = []
    for spec, gpu in zip(specs, gpus, strict=True):
        label = gpu.uuid or spec
        try:
            found = gpu.settings()
        except DeviceError as error:
            lines.append(line("clocks and limits left", "unknown", f"{label}: {error}"))
            continue
        note = note_of(gpu.uuid, found)
        outcome = judge_left(found, holders_of(spec, running), note)
        if outcome in ("left", "perhaps") and fix:
            lines.append(_fix(gpu, label, found))
        elif outcome != "none":
            lines.append(line("clocks and limits left", outcome, f"{label}: {found.text if found.differs else NOTED}"))
    return lines or [line("clocks and limits left", "none", f"{len(gpus)} GPU(s) at their defaults")]


def note_of(uuid: str, found: GpuSettings) -> Left | None:
    """Returns what a job of this user has noted about a GPU: about a power limit that is still in force, or a clock."""
    limit, clock = limit_note(uuid).left(), clock_note(uuid).left()
    if limit is not None and found.limit_differs and limit.is_of(found.limit_w, SAME_W):
        return limit
    return clock


def holders_of(spec: str, running: Sequence[Holder]) -> list[Holder]:
    """Returns the clock processes that may hold a GPU: those that set it, and those whose GPU is not known."""
    return [holder for holder in running if holder.spec in (None, spec)]


def judge_left(found: GpuSettings, holders: Sequence[Holder], note: Left | None) -> str:
    """Returns the outcome for one GPU, with what a job of this user has noted about a setting that is not put back."""
    if holders or (note is not None and note.in_use):
        return "in-use" if found.differs else "none"
    if note is not None and not found.processes:
        return "left"  # also where the driver does not show it: the reset was not verified
    if not found.differs:
        return "none"
    if found.processes:
        return "in-use"
    if found.locked_mhz and found.lock_is_sure:
        return "left"
    return "perhaps" if found.locked_mhz else "site"


def _fix(gpu: Gpu, label: str, before: GpuSettings) -> Check:
    """Resets the clock, and the power limit that a job has noted, until both are verified; gives up after 10 s."""
    was = before.text if before.differs else NOTED
    problem = reset_left(gpu, _FIX_FOR_S, locked_mhz=float(before.locked_mhz))
    if problem:
        return line("clocks and limits left", "not-fixed", f"{label}: {was}; {problem}")
    try:
        after = gpu.settings()
    except DeviceError as error:
        return line("clocks and limits left", "not-fixed", f"{label}: {was}; {error}")
    if after.locked_mhz and after.lock_is_sure:
        return line("clocks and limits left", "not-fixed", f"{label}: {after.text}")
    return line("clocks and limits left", "fixed", f"{label}: was {was}")
