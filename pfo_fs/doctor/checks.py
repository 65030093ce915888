"""What works on this node, and what to do if something does not. Changes GPU settings only if asked to fix them."""

import ctypes
import os
import secrets
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from pfo_fs.device import shared_page
from pfo_fs.device.clock_client import ClockProcess
from pfo_fs.device.clock_start import ClockOptions
from pfo_fs.device.clocks.undo import reset_left
from pfo_fs.device.clocks.undo_note import SAME_W, Leftover, clock_note, limit_note
from pfo_fs.device.gpu.find_gpu import find_gpu_spec, visible_uuids
from pfo_fs.device.gpu.interface import POWER_CAP, Gpu, GpuSettings
from pfo_fs.device.gpu.spec import NAMES, BackedGpu, open_gpu
from pfo_fs.device.metering.read_back import LOOKS_LIKE, other_setters
from pfo_fs.device.shared_page import SharedPage
from pfo_fs.doctor.lines import Check, line
from pfo_fs.errors import DeviceError, PfoError
from pfo_fs.helper.client import HelperClient
from pfo_fs.ipc.messages import ClocksHeld, WatchSwitch
from pfo_fs.models import counts_whole_module

_WAYS = "each way to set clocks"
"""The line of `lines.yaml` that is printed for each way to set clocks, under the name of the way."""
_WITHIN_S = 30.0
NOTED = "a job has noted that it could not reset the clock; the driver does not show whether it is still locked"
_FIX_FOR_S = 10.0
_MODULE = b"pfo_fs.device.clock_process"
_pages: list[SharedPage] = []
"""Pages that CUDA writes to; they must stay mapped."""


def gpu_specs(most: int | None = None) -> list[str]:
    """Returns the specs of this node's GPUs: those that CUDA_VISIBLE_DEVICES leaves, or what `PFO_FS_GPU` asks for.

    `most`: the number of simulated GPUs, 1 if None; the most real GPUs, all if None.

    Raises:
        DeviceError: There is no GPU that pfo-fs can use.
    """
    asked = os.environ.get("PFO_FS_GPU", "")
    if asked == "simulated":
        return [f"simulated:doctor-{os.getpid()}-{number}" for number in range(most or 1)]
    if asked == "none":
        raise DeviceError("PFO_FS_GPU=none asks for no GPU; unset it")
    specs = [find_gpu_spec()] if asked else [f"nvml:{uuid}" for uuid in visible_uuids()][:most]
    if not specs:
        raise DeviceError("no NVIDIA GPU is visible to this process; look at CUDA_VISIBLE_DEVICES")
    return specs


def check_node(most: int | None = None, *, fix: bool = False, needs_gpu: bool = True) -> list[Check]:
    """Looks at the GPUs, the ways to set their clocks, what others have set, the processes beside training, and marks.

    `fix`: GPUs that were left with locked clocks or another power limit, and that no job holds, are reset.
    """
    checks = []
    gpus: list[Gpu] = []
    specs: list[str] = []
    try:
        specs = gpu_specs(most)
        gpus.extend(map(open_gpu, specs))
        names = ", ".join(sorted({gpu.name for gpu in gpus}))
        checks.append(line("GPUs", "ok", f"{len(gpus)}: {names}{_without_energy(gpus)}"))
    except PfoError as error:
        checks.append(line("GPUs", "none" if needs_gpu else "none-needed", str(error)))
    try:
        whole = len(gpus) == len(specs) > 0
        checks += check_clocks(gpus[0] if whole else None)
        if whole:
            checks += check_other_setters(gpus)
            checks += check_leftovers(specs, gpus, fix=fix)
    finally:
        for gpu in gpus:
            gpu.close()
    checks += [check_clock_process(specs[0] if specs else "none"), check_helper()]
    if whole:
        checks.append(check_marks(specs[0]))
    return checks


def _without_energy(gpus: Sequence[Gpu]) -> str:
    """Returns the end of a text about a GPU whose energy cannot be read, or may be that of more than the GPU."""
    for gpu in gpus:
        if counts_whole_module(gpu.name):
            return "; their energy counters may count the whole module, CPU included: savings are shares of that"
        try:
            gpu.energy_j()
        except PfoError as error:
            return f"; no energy, only time, is measured on {gpu.uuid}: {error}"
    return ""


def check_clocks(gpu: Gpu | None) -> list[Check]:
    asked = os.environ.get("PFO_FS_CLOCK_BACKEND") or "auto"
    if asked not in NAMES:
        return [line("clocks", "none", f"PFO_FS_CLOCK_BACKEND: {asked!r} is unknown; it can be {', '.join(NAMES)}")]
    if not isinstance(gpu, BackedGpu):
        return [] if gpu is None else [line("clocks", "ok", f"set by: {gpu.clock_backend}")]
    reasons = gpu.reasons()
    chosen = next((name for name, why in reasons.items() if not why and asked in ("auto", POWER_CAP, name)), "")
    found = f"set by: {chosen}, unless the first call is refused" if chosen else "no way to set clocks works here"
    if asked != "auto":
        found += f" (PFO_FS_CLOCK_BACKEND={asked})"
    ways = [
        line(_WAYS, "no" if why else "ok", why or "seems to work")._replace(name=f"  {name}")
        for name, why in reasons.items()
        if name != "none"
    ]
    return [line("clocks", "ok" if chosen else "none", found), *ways]


def check_other_setters(gpus: Sequence[Gpu]) -> list[Check]:
    """Says what else decides the clocks of the GPUs, if that can be seen."""
    found = {LOOKS_LIKE[name]: name for gpu in gpus for name in other_setters(gpu)}
    for gpu in gpus:
        with suppress(DeviceError):
            held_back = gpu.clock_seen().held_back
            found |= {f"{gpu.uuid}: {held_back}": "held"} if held_back else {}
    return [line("others who decide clocks", found[what], what) for what in found] or [
        line("others who decide clocks", "none", "none found")
    ]


def check_marks(spec: str) -> Check:
    """Runs the self-test of marks that the device writes when it reaches them."""
    if spec.startswith("simulated:"):
        return line("marks at device time", "ok", "simulated stream")
    try:
        import torch
    except ImportError as error:
        return line("marks at device time", "untested", f"not tested: torch cannot be imported ({error})")
    if not torch.cuda.is_available():
        return line("marks at device time", "untested", "not tested: this torch has no CUDA device")
    from pfo_fs.training.stream_marks import open_stream_marks

    page = SharedPage.create()
    _pages.append(page)
    address = ctypes.addressof(ctypes.c_char.from_buffer(page.words)) + 8 * shared_page.PROGRESS
    try:
        marks = open_stream_marks(address, 0)
    except PfoError as error:
        return line("marks at device time", "no", str(error))
    marks.page.unregister()
    return line("marks at device time", "ok", "by stream write")


# ---- GPUs that were left with a locked clock or another power limit, and their reset


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
                if _MODULE in words:  # the next word is the GPU
                    spec = os.fsdecode(words[words.index(_MODULE) + 1])
                    found.append(Holder(int(entry.name), spec or None))
    return found


def check_leftovers(specs: Sequence[str], gpus: Sequence[Gpu], *, fix: bool) -> list[Check]:
    """Looks at GPUs (`specs`: names, `gpus`: opened); if `fix`, resets those that were left and that no job holds."""
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
        may_hold = [holder for holder in running if holder.spec in (None, spec)]
        outcome = judge_leftover(found, may_hold, note)
        if outcome in ("left", "perhaps") and fix:
            lines.append(_fix(gpu, label, found))
        elif outcome != "none":
            lines.append(line("clocks and limits left", outcome, f"{label}: {found.text if found.differs else NOTED}"))
    return lines or [line("clocks and limits left", "none", f"{len(gpus)} GPU(s) at their defaults")]


def note_of(uuid: str, found: GpuSettings) -> Leftover | None:
    """Returns what a job of this user has noted of a GPU: a power limit, if that is still in force; else, a clock."""
    limit, clock = limit_note(uuid).leftover(), clock_note(uuid).leftover()
    if limit is not None and found.limit_differs and limit.is_of(found.limit_w, SAME_W):
        return limit
    return clock


def judge_leftover(found: GpuSettings, holders: Sequence[Holder], note: Leftover | None) -> str:
    """Returns the outcome for one GPU, as in `lines.yaml`; `note`: what a job has noted and has not put back."""
    if holders or (note is not None and note.in_use):
        return "in-use" if found.differs else "none"
    if note is not None and not found.processes:
        return "left"  # also if the driver does not show a difference: the reset was not verified
    if not found.differs:
        return "none"
    if found.processes:
        return "in-use"
    if found.locked_mhz and found.lock_is_sure:
        return "left"
    return "perhaps" if found.locked_mhz else "site"  # a power limit that no job noted: perhaps the site's own


def _fix(gpu: Gpu, label: str, before: GpuSettings) -> Check:
    """Resets the clock, and the power limit that a job has noted, until both are verified; gives up after 10 s."""
    was = before.text if before.differs else NOTED
    problem = reset_left(gpu, _FIX_FOR_S, locked_mhz=float(before.locked_mhz))
    try:
        after = gpu.settings()
    except DeviceError as error:
        problem = problem or str(error)
    else:
        if not problem and after.locked_mhz and after.lock_is_sure:
            problem = after.text
    if problem:
        return line("clocks and limits left", "not-fixed", f"{label}: {was}; {problem}")
    return line("clocks and limits left", "fixed", f"{label}: was {was}")


# ---- the two processes beside training, started as training does


def check_clock_process(spec: str) -> Check:
    """Starts a clock process, which sets nothing, for a GPU or `none`, and ends it."""
    began_s = time.monotonic()
    clocks = ClockProcess(spec, ClockOptions(leave_clocks=True, tries_only=True), start_timeout_s=_WITHIN_S)
    try:
        message = clocks.message
        return line("clock process", "no", message) if clocks.lost else line("clock process", "ok", _ready(began_s))
    finally:
        clocks.close()


def check_helper() -> Check:
    """Starts a helper in an empty directory; it ends when its only client has gone."""
    began_s = time.monotonic()
    token = secrets.token_hex(16)
    with tempfile.TemporaryDirectory(prefix="pfo-fs-doctor-", ignore_cleanup_errors=True) as folder:
        try:
            client = HelperClient(f"pfo-fs-doctor-{token[:12]}", folder, token, 0, {})
        except (OSError, PfoError) as error:
            return line("helper process", "no", f"it could not be started: {error}")
        client.send(WatchSwitch())
        answer = client.wait_for(ClocksHeld, _WITHIN_S)
        client.close()
        assert client.process is not None
        try:
            client.process.wait(_WITHIN_S)
        except TimeoutError:
            client.process.kill()
            return line("helper process", "no", f"it has not ended within {_WITHIN_S:g} s{client.how_it_ended()}")
    if answer is None:
        return line("helper process", "no", f"it has not answered{client.how_it_ended()}")
    return line("helper process", "ok", _ready(began_s))


def _ready(began_s: float) -> str:
    return f"starts and ends within {time.monotonic() - began_s:.1f} s"
