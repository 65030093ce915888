"""A steady load of short, equal kernels on one GPU, whose begins and ends are known in the time of this host."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from typing import Any

from pfo_fs.device.simulated.gpu import SimulatedKernels
from pfo_fs.doctor.change_moment import Kernel
from pfo_fs.errors import DeviceError

_KERNEL_S = 0.0005
"""A kernel takes about this long at the highest clock."""


class Load(ABC):
    """Runs equal kernels one directly after the other, in a thread of its own."""

    _thread: threading.Thread | None = None

    @abstractmethod
    def run_kernels(self, end: threading.Event) -> list[Kernel]:
        """Runs kernels until the event is set; returns them, in s of `time.monotonic`."""

    def start(self) -> None:
        """Begins a recording."""
        self._end = threading.Event()
        self._recorded: list[Kernel] = []
        self._problem: Exception | None = None
        self._thread = threading.Thread(target=self._record, daemon=True)
        self._thread.start()

    def _record(self) -> None:
        try:
            self._recorded = self.run_kernels(self._end)
        except Exception as error:  # noqa: BLE001  torch raises errors of many kinds; `stop` raises it
            self._problem = error

    def stop(self) -> list[Kernel]:
        """Ends the recording; returns its kernels, in s of `time.monotonic`."""
        thread, self._thread = self._thread, None
        if thread is None:
            return []
        self._end.set()
        thread.join()
        if self._problem is not None:
            raise DeviceError(f"the load that shows when a clock acts has failed: {self._problem}") from self._problem
        return self._recorded

    def close(self) -> None:
        """Ends the use of the GPU."""
        self.stop()


class SimulatedLoad(Load):
    """Kernels of a simulated GPU.

    Args:
        name: The simulated GPU.
    """

    def __init__(self, name: str) -> None:
        with_scale_1 = SimulatedKernels(name, time_scale=1.0)
        self._kernels = SimulatedKernels(name, time_scale=with_scale_1.model("forward", 0).time_ref_s / _KERNEL_S)
        with_scale_1.close()

    def run_kernels(self, end: threading.Event) -> list[Kernel]:
        """See `Load.run_kernels`."""
        recorded = []
        while not end.is_set():
            began_ns = time.monotonic_ns()
            self._kernels.run("forward", started_ns=began_ns)
            recorded.append(Kernel(began_ns / 1e9, self._kernels.ended_ns / 1e9))
        return recorded

    def close(self) -> None:
        """See `Load.close`."""
        self.stop()
        self._kernels.close()


class TorchLoad(Load):
    """Matrix products in 32-bit floating point: bound by the clock, and far from the power limit.

    Args:
        spec: The GPU, `nvml:<UUID>`.

    Raises:
        DeviceError: torch cannot use this GPU.
    """

    _SIZE = 1024
    _AHEAD = 8
    """Kernels that are launched ahead, so that the GPU does not wait for this process."""

    def __init__(self, spec: str) -> None:
        try:
            import torch
        except ImportError as error:
            raise DeviceError(f"torch cannot be imported ({error}): pip install torch") from None
        if not torch.cuda.is_available():
            raise DeviceError("this torch has no CUDA device; install a torch with CUDA")
        self._torch: Any = torch
        self._device = _device_index(torch, spec)
        with torch.cuda.device(self._device):
            self._factors = [torch.randn(self._SIZE, self._SIZE, device="cuda") for _ in range(2)]
            self._product = torch.empty_like(self._factors[0])
            self._products = 1
            once_s = self._kernel_s(50)
            self._products = max(1, round(_KERNEL_S / once_s))

    def _kernel_s(self, count: int) -> float:
        """Returns the mean duration of a kernel, after a warm-up."""
        torch = self._torch
        for _ in range(count):
            self._launch()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(count):
            self._launch()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3 / count

    def _launch(self) -> None:
        for _ in range(self._products):
            self._torch.mm(*self._factors, out=self._product)

    def run_kernels(self, end: threading.Event) -> list[Kernel]:
        """See `Load.run_kernels`."""
        torch = self._torch
        with torch.cuda.device(self._device):
            base, base_s = self._base()
            events = []
            while not end.is_set():
                pair = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
                pair[0].record()
                self._launch()
                pair[1].record()
                events.append(pair)
                if len(events) > self._AHEAD:
                    events[-self._AHEAD][1].synchronize()
            torch.cuda.synchronize()
            return [Kernel(*(base_s + base.elapsed_time(event) / 1e3 for event in pair)) for pair in events]

    def _base(self) -> tuple[Any, float]:
        """Returns an event and its time on this host: of several, the one between the two closest readings."""
        torch = self._torch
        best: tuple[float, Any, float] | None = None
        for _ in range(10):
            torch.cuda.synchronize()
            event = torch.cuda.Event(enable_timing=True)
            before_s = time.monotonic()
            event.record()
            event.synchronize()
            after_s = time.monotonic()
            if best is None or after_s - before_s < best[0]:
                best = after_s - before_s, event, (before_s + after_s) / 2
        assert best is not None
        return best[1], best[2]


def _device_index(torch: Any, spec: str) -> int:
    """Returns the index by which torch knows the GPU `nvml:<UUID>`."""
    for index in range(torch.cuda.device_count()):
        if spec.endswith(str(torch.cuda.get_device_properties(index).uuid)):
            return index
    raise DeviceError(f"torch does not see the GPU {spec}; look at CUDA_VISIBLE_DEVICES")


def open_load(spec: str) -> Load:
    """Returns the load for a GPU.

    Raises:
        DeviceError: This GPU cannot be given work; the message says why.
    """
    kind, _, name = spec.partition(":")
    return SimulatedLoad(name) if kind == "simulated" else TorchLoad(spec)
