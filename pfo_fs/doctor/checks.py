"""What works on this node, and what to do about what does not. Changes no setting of a GPU."""

from __future__ import annotations

import ctypes
import os
from typing import Any, NamedTuple

from pfo_fs.device import Gpu, open_gpu, shared_page
from pfo_fs.device.clock_backends.choice import BackedGpu
from pfo_fs.device.host_driver import HostDriver, driver_file
from pfo_fs.device.shared_page import SharedPage
from pfo_fs.doctor.node import gpu_specs
from pfo_fs.errors import PfoError
from pfo_fs.switching_file import VARIABLE, given_switching

_pages: list[SharedPage] = []
"""Pages that CUDA writes to; they must stay mapped."""


class Check(NamedTuple):
    """One thing that was looked at.

    Attributes:
        name: What.
        ok: Whether it works; None if that does not matter here, or could not be found out.
        found: What was found.
        hint: What to do; empty if nothing.
    """

    name: str
    ok: bool | None
    found: str
    hint: str = ""


def check_node(most: int | None = None) -> list[Check]:
    """Looks at the GPUs, the ways to set their clocks, marks at device time, and the file of measured costs.

    Args:
        most: The number of GPUs; None: all.
    """
    checks = []
    gpus: list[Gpu] = []
    specs: list[str] = []
    try:
        specs = gpu_specs(most)
        gpus.extend(map(open_gpu, specs))
        names = ", ".join(sorted({gpu.name for gpu in gpus}))
        checks.append(Check("GPUs", True, f"{len(gpus)}: {names}"))
    except PfoError as error:
        hint = "without a GPU, jobs measure time only; PFO_FS_GPU=simulated tries everything without one"
        checks.append(Check("GPUs", False, str(error), hint))
    try:
        if len(gpus) == len(specs) > 0:
            checks += check_clocks(gpus[0])
            checks.append(check_marks(specs[0]))
    finally:
        for gpu in gpus:
            gpu.close()
    return [*checks, check_others(), check_switching_file()]


def check_clocks(gpu: Gpu) -> list[Check]:
    """Says which way would set the clocks of a GPU, and why other ways cannot."""
    if not isinstance(gpu, BackedGpu):
        return [Check("clocks", True, f"set by: {gpu.clock_backend}")]
    reasons = gpu.reasons()
    asked = os.environ.get("PFO_FS_CLOCK_BACKEND") or "auto"
    chosen = next((name for name, why in reasons.items() if not why and asked in ("auto", name)), "")
    found = f"set by: {chosen}, unless the first call is refused" if chosen else "no way to set clocks works here"
    if asked != "auto":
        found += f" (PFO_FS_CLOCK_BACKEND={asked})"
    hint = "" if chosen else "jobs train at default clocks; docs/clock-backends.md tells operators what to set up"
    ways = [
        Check(f"  {name}", None if why else True, why or "seems to work")
        for name, why in reasons.items()
        if name != "none"
    ]
    return [Check("clocks", bool(chosen), found, hint), *ways]


def check_marks(spec: str) -> Check:
    """Runs the self-test of marks that the device writes when it gets there."""
    name = "marks at device time"
    if spec.startswith("simulated:"):
        return Check(name, True, "simulated stream")
    try:
        import torch
    except ImportError as error:
        return Check(name, None, f"not tested: torch cannot be imported ({error})", "run this where training runs")
    if not torch.cuda.is_available():
        return Check(name, None, "not tested: this torch has no CUDA device", "run this where training runs")
    from pfo_fs.training.stream_marks import open_stream_marks

    page = SharedPage.create()
    _pages.append(page)
    address = ctypes.addressof(ctypes.c_char.from_buffer(page.words)) + 8 * shared_page.PROGRESS
    try:
        marks: Any = open_stream_marks(address, 0)
    except PfoError as error:
        return Check(
            name, False, str(error), "clocks follow the launches, which is right only if training waits for each"
        )
    marks.close()
    return Check(name, True, f"by {marks.how}")


def check_others() -> Check:
    """Says how many other processes of pfo-fs of this user set clocks here now."""
    driver = HostDriver(driver_file())
    try:
        others = driver.others()
    finally:
        driver.close()
    found = f"{others} other processes set clocks here now" if others else "no other process sets clocks"
    return Check("jobs here", None, found)


def check_switching_file() -> Check:
    """Says whether the file of measured costs of clock changes can be read."""
    name = "costs of clock changes"
    try:
        given = given_switching()
    except PfoError as error:
        return Check(name, False, f"{VARIABLE}: {error}")
    if given is None:
        return Check(name, None, f"{VARIABLE} is not set", "pfo-fs doctor --switching measures them (it sets clocks)")
    return Check(name, True, f"a call takes {given.call_s.median * 1e3:.1f} ms, {len(given.latency_s)} clocks measured")
