"""Opens the GPU that a spec names.

A *spec* names a GPU across processes: `nvml:GPU-<uuid>`, `simulated:<name>`, or `none`. A GPU is always found by its
UUID, since LOCAL_RANK and CUDA's ordinals differ from NVML's. The clock process imports this module, so it imports
little before it knows which GPU that is.
"""

from __future__ import annotations

import os
from contextlib import suppress
from importlib import import_module

from pfo_fs.device.clock_backends.choice import MODULES, NAMES
from pfo_fs.device.gpu.interface import DryRunGpu, Gpu, NoGpu
from pfo_fs.errors import DeviceError


def open_gpu(spec: str, clock_backend: str = "auto") -> Gpu:
    """Opens the GPU that `spec` names, read-only if `PFO_FS_DRY_RUN` is set.

    Args:
        clock_backend: The way to set clocks: one of `clock_backends.choice.NAMES`. On simulated GPUs, only `none`
            differs from the others, as it sets no clocks.

    Raises:
        DeviceError: `spec` does not name a GPU of this machine, the GPU cannot be opened, or there is no such way.
    """
    if clock_backend not in NAMES:
        raise DeviceError(f"there is no clock backend {clock_backend!r}; use one of {', '.join(NAMES)}")
    kind, _, name = spec.partition(":")
    gpu: Gpu
    if kind == "none":
        return NoGpu(name) if name else NoGpu()
    if kind == "simulated" and name:
        from pfo_fs.device.simulated.gpu import SimulatedGpu

        gpu = SimulatedGpu(name)
        if clock_backend == "none":
            from pfo_fs.device.clock_backends.choice import BackedGpu

            gpu = BackedGpu(gpu, clock_backend)
    elif kind == "nvml" and name:
        from pfo_fs.device.clock_backends.choice import BackedGpu
        from pfo_fs.device.gpu.nvml import NvmlGpu

        gpu = BackedGpu(NvmlGpu(name), clock_backend)
    else:
        raise DeviceError(f"{spec!r} does not name a GPU; use nvml:<UUID>, simulated:<name> or none")
    if os.environ.get("PFO_FS_DRY_RUN", "") not in ("", "0"):
        return DryRunGpu(gpu, os.environ.get("PFO_FS_DRY_RUN_LOG") or None)
    return gpu


def load_all_ways() -> None:
    """Imports what `open_gpu`, and later a GPU that it has opened, would import only then."""
    ours = ("gpu.nvml", "simulated.gpu", *(f"clock_backends.{way}" for way in MODULES))
    for name in ("pynvml", *(f"pfo_fs.device.{name}" for name in ours)):
        with suppress(Exception):  # what cannot be imported cannot be used either
            import_module(name)


def open_to_set(spec: str, leave_clocks: bool, clock_backend: str) -> tuple[Gpu, str]:
    """Returns the GPU, and why its clocks cannot be set, or ''. Resets clocks that a crashed job has left locked."""
    try:
        gpu = open_gpu(spec, clock_backend)
        return gpu, "this process was started to leave the clocks alone" if leave_clocks else gpu.try_reset()
    except DeviceError as error:
        return NoGpu(str(error)), str(error)
