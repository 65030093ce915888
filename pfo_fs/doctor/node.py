"""The GPUs of this node, held for a measurement that sets clocks."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import NoReturn

from pfo_fs.device.clock_client import ClockProcess
from pfo_fs.device.clocks.host_driver import HostDriver, driver_file
from pfo_fs.device.clocks.undo import clock_undo, finish
from pfo_fs.device.gpu.interface import Gpu
from pfo_fs.device.gpu.spec import open_gpu
from pfo_fs.errors import DeviceError

log = logging.getLogger("pfo_fs")

_RESET_FOR_S = 5.0
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


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
    """Opens GPUs to set their clocks, and resets all clocks at the end, also after a signal or an error.

    A clock process watches each GPU: it resets the clocks even if this process is killed by SIGKILL. While the GPUs are
    held, SIGTERM, SIGHUP and SIGINT end this process by an exception, so that it gets to the end of this context.

    Raises:
        DeviceError: Another process of pfo-fs sets clocks on this node, or clocks cannot be set.
    """
    with ExitStack() as stack:
        stack.enter_context(_signals_as_exceptions())
        driver = HostDriver(driver_file())
        stack.callback(driver.close)
        _refuse_if_in_use(driver)
        watchers = []
        for spec in specs:
            watcher = ClockProcess(spec)
            stack.callback(watcher.close)
            watchers.append(watcher)
        for watcher in watchers:
            if watcher.message:
                raise DeviceError(f"{watcher.spec}: clocks cannot be set: {watcher.message}")
        gpus: list[Gpu] = []
        stack.callback(_reset_all, gpus)
        for spec in specs:
            gpus.append(open_gpu(spec, os.environ.get("PFO_FS_CLOCK_BACKEND") or "auto"))
            problem = gpus[-1].try_reset()
            if gpus[-1].clock_backend == "dry run":
                problem = "PFO_FS_DRY_RUN is set; unset it to measure"
            if problem:
                raise DeviceError(f"{spec}: clocks cannot be set: {problem}")
        yield gpus


def _refuse_if_in_use(driver: HostDriver) -> None:
    others = driver.others()
    if others:
        raise DeviceError(
            f"{others} other process(es) of pfo-fs set clocks on this node, and both would be "
            "disturbed; measure when no job runs here"
        )


def _reset_all(gpus: Sequence[Gpu]) -> None:
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)  # a second signal must not keep clocks locked
    for gpu in gpus:
        undo = clock_undo(gpu)
        undo.owe(0.0)
        if not finish((undo,), _RESET_FOR_S):
            log.warning("%s: %s; its clock process goes on", gpu.uuid, undo.problem)
        with suppress(DeviceError):
            gpu.close()


def _end(number: int, _: object) -> NoReturn:
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    raise SystemExit(128 + number)


@contextmanager
def _signals_as_exceptions() -> Iterator[None]:
    before = {number: signal.signal(number, _end) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
