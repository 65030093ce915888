"""GPUs, the clock process that sets their clocks and measures, and the page shared with it.

Names are imported at their first use, because the clock process imports this package and must start fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pfo_fs.device.clock_client import ClockProcess
    from pfo_fs.device.gpu.find_gpu import find_gpu_spec
    from pfo_fs.device.gpu.interface import Gpu
    from pfo_fs.device.gpu.spec import open_gpu
    from pfo_fs.device.simulated.gpu import SimulatedGpu, SimulatedKernels

_HOME = {
    "ClockProcess": "pfo_fs.device.clock_client",
    "Gpu": "pfo_fs.device.gpu.interface",
    "SimulatedGpu": "pfo_fs.device.simulated.gpu",
    "SimulatedKernels": "pfo_fs.device.simulated.gpu",
    "find_gpu_spec": "pfo_fs.device.gpu.find_gpu",
    "open_gpu": "pfo_fs.device.gpu.spec",
}

__all__ = ["ClockProcess", "Gpu", "SimulatedGpu", "SimulatedKernels", "find_gpu_spec", "open_gpu"]


if not TYPE_CHECKING:  # so that mypy knows the names above only

    def __getattr__(name: str) -> Any:
        if name in _HOME:
            from importlib import import_module

            return getattr(import_module(_HOME[name]), name)
        raise AttributeError(f"module 'pfo_fs.device' has no attribute {name!r}")
