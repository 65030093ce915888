"""The GPUs of this node, held for a measurement that sets clocks."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from pfo_fs.device.clock_client import ClockProcess
from pfo_fs.device.clocks.host_driver import HostDriver, driver_file
from pfo_fs.device.gpu.interface import Gpu
from pfo_fs.device.gpu.spec import open_gpu
from pfo_fs.errors import DeviceError


def gpu_specs(most: int | None = None) -> list[str]:
    """Returns the specs of this node's GPUs: those that CUDA_VISIBLE_DEVICES leaves, or what `PFO_FS_GPU` asks for.

    Args:
        most: The number of simulated GPUs, 1 if None; of real GPUs, the first ones up to this number.

    Raises:
        DeviceError: There is no GPU that pfo-fs can use.
    """
    asked = os.environ.get("PFO_FS_GPU", "")
    if asked == "simulated":
        return [f"simulated:doctor-{os.getpid()}-{number}" for number in range(most or 1)]
    if asked == "none":
        raise DeviceError("PFO_FS_GPU=none asks for no GPU; unset it")
    if asked:
        return [asked]
    from pfo_fs.device.gpu.find_gpu import visible_uuids

    specs = [f"nvml:{uuid}" for uuid in visible_uuids()][:most]
    if not specs:
        raise DeviceError("no NVIDIA GPU is visible to this process; look at CUDA_VISIBLE_DEVICES")
    return specs


@contextmanager
def held_gpus(specs: Sequence[str]) -> Iterator[list[Gpu]]:
    """Opens GPUs to set their clocks, which are reset at the end of the context, or of this process.

    A clock process beside each GPU resets its clocks, however this process ends.

    Raises:
        DeviceError: Another process of pfo-fs sets clocks on this node, or clocks cannot be set.
    """
    with ExitStack() as stack:
        driver = HostDriver(driver_file())
        stack.callback(driver.close)
        _refuse_if_in_use(driver)
        watchers: list[ClockProcess] = []
        stack.callback(_end, watchers)
        watchers.extend(map(ClockProcess, specs))
        for watcher in watchers:
            if watcher.message:
                raise DeviceError(f"{watcher.spec}: clocks cannot be set: {watcher.message}")
        gpus: list[Gpu] = []
        for spec in specs:
            gpus.append(open_gpu(spec, os.environ.get("PFO_FS_CLOCK_BACKEND") or "auto"))
            stack.callback(gpus[-1].close)
            problem = gpus[-1].try_reset()
            if gpus[-1].clock_backend == "dry run":
                problem = "PFO_FS_DRY_RUN is set; unset it to measure"
            if problem:
                raise DeviceError(f"{spec}: clocks cannot be set: {problem}")
        yield gpus


def _end(watchers: Sequence[ClockProcess]) -> None:
    """Has all clock processes reset their GPUs at the same time, and waits some seconds for that."""
    for watcher in watchers:
        watcher.leave()
    for watcher in watchers:
        watcher.close()


def _refuse_if_in_use(driver: HostDriver) -> None:
    others = driver.others()
    if others:
        raise DeviceError(
            f"{others} other process(es) of pfo-fs set clocks on this node, and both would be "
            "disturbed; measure when no job runs here"
        )
