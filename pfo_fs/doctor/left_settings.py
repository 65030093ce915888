"""GPUs that were left with a locked clock or another power limit, and their reset."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from pfo_fs.device import Gpu
from pfo_fs.device.gpu_settings import GpuSettings, gpu_settings_now
from pfo_fs.doctor.catalogue_node import LEFT
from pfo_fs.doctor.lines import Check
from pfo_fs.errors import DeviceError

_MODULE = b"pfo_fs.device.clock_process"
_MOST_BYTES = 1 << 20


class Holder(NamedTuple):
    """A running clock process.

    Attributes:
        pid: Its id.
        spec: The GPU that it sets; None if this user may not know.
    """

    pid: int
    spec: str | None


def running_clock_processes(proc: Path = Path("/proc")) -> list[Holder]:
    """Returns the clock processes of all users on this host, as far as the kernel shows them."""
    found = []
    for entry in proc.iterdir():
        if entry.name.isdecimal():
            with suppress(OSError):
                if _MODULE in (entry / "cmdline").read_bytes().split(b"\0"):
                    found.append(Holder(int(entry.name), _spec_of(entry)))
    return found


def _spec_of(entry: Path) -> str | None:
    with suppress(OSError, ValueError, KeyError, TypeError):
        with open(entry / "environ", "rb") as file:
            variables = file.read(_MOST_BYTES).split(b"\0")
        given = next(text for text in variables if text.startswith(b"PFO_FS_PROCESS_ARGUMENTS="))
        return str(json.loads(given.partition(b"=")[2])["spec"])
    return None


def check_left(specs: Sequence[str], gpus: Sequence[Gpu], *, fix: bool) -> list[Check]:
    """Looks at each GPU; resets those that were left and that no job holds, if `fix`.

    Args:
        specs: The GPUs, by name.
        gpus: The same GPUs, open.
        fix: Whether to reset.
    """
    holders = [holder for holder in running_clock_processes() if holder.pid != os.getpid()]
    lines = []
    for spec, gpu in zip(specs, gpus, strict=True):
        label = gpu.uuid or spec
        try:
            state = gpu_settings_now(spec)
        except DeviceError as error:
            lines.append(LEFT.check("unknown", f"{label}: {error}"))
            continue
        line = judge_left(label, state, holders_of(spec, holders))
        if line is not None:
            may_fix = fix and line.name == LEFT.name and LEFT.outcomes["in-use"].meaning != line.meaning
            lines.append(_fix(spec, gpu, label, state) if may_fix else line)
    return lines or [LEFT.check("none", f"{len(gpus)} GPU(s) at their defaults")]


def holders_of(spec: str, holders: Sequence[Holder]) -> list[Holder]:
    """Returns the clock processes that may hold a GPU: those that set it, and those whose GPU is not known."""
    return [holder for holder in holders if holder.spec in (None, spec)]


def judge_left(label: str, state: GpuSettings, holders: Sequence[Holder]) -> Check | None:
    """Returns the line about one GPU; None if it has its defaults."""
    if not state.differs:
        return None
    text = f"{label}: {state.text}"
    if holders:
        return LEFT.check("in-use", f"{text}, held by clock process {holders[0].pid}")
    if state.processes:
        return LEFT.check("in-use", f"{text}, {state.processes} process(es) compute on it")
    return LEFT.check("left" if state.is_sure else "perhaps", text)


def _fix(spec: str, gpu: Gpu, label: str, before: GpuSettings) -> Check:
    """Resets clock and power limit, and looks whether that has helped."""
    try:
        gpu.reset_clocks()
        if before.limit_differs:
            gpu.set_power_limit_w(before.default_limit_w)
        after = gpu_settings_now(spec)
    except DeviceError as error:
        return LEFT.check("not-fixed", f"{label}: {before.text}; {error}")
    if after.differs and after.is_sure:
        return LEFT.check("not-fixed", f"{label}: {after.text}")
    return LEFT.check("fixed", f"{label}: was {before.text}")
