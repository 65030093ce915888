"""The load on a real GPU, with a torch of which only what the load calls is there."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from pfo_fs.device.simulated.gpu import SimulatedGpu, SimulatedKernels
from pfo_fs.doctor.load import SimulatedLoad, TorchLoad, open_load
from pfo_fs.errors import DeviceError

PRODUCT_S = 0.0001


class Device:
    """A GPU that takes `PRODUCT_S` for each product; `until_s` is when it has done all that was launched."""

    def __init__(self) -> None:
        self.until_s = 0.0

    def launch(self) -> None:
        self.until_s = max(self.until_s, time.monotonic()) + PRODUCT_S

    def wait(self, until_s: float) -> None:
        while time.monotonic() < until_s:
            time.sleep(PRODUCT_S)


class Event:
    """A CUDA event on that device."""

    def __init__(self, device: Device) -> None:
        self._device = device

    def record(self) -> None:
        self.at_s = max(self._device.until_s, time.monotonic())

    def synchronize(self) -> None:
        self._device.wait(self.at_s)

    def elapsed_time(self, end: Event) -> float:
        return (end.at_s - self.at_s) * 1e3


class FakeTorch(ModuleType):
    """torch with one CUDA device."""

    def __init__(self, device: Device) -> None:
        super().__init__("torch")
        self._device = device
        self.available = True
        self.cuda = SimpleNamespace(
            is_available=lambda: self.available,
            device_count=lambda: 1,
            get_device_properties=lambda index: SimpleNamespace(uuid="aaaa1111-0000"),
            device=self._current,
            Event=lambda enable_timing: Event(device),
            synchronize=lambda: device.wait(device.until_s),
        )

    @contextmanager
    def _current(self, index: int) -> Iterator[None]:
        yield

    def randn(self, *size: int, device: str) -> object:
        return object()

    def empty_like(self, other: object) -> object:
        return object()

    def mm(self, *factors: Any, out: object) -> None:
        self._device.launch()


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> FakeTorch:
    fake = FakeTorch(Device())
    monkeypatch.setitem(sys.modules, "torch", fake)
    return fake


def test_kernels_of_torch_end_in_the_time_of_the_host_one_after_the_other(torch: FakeTorch) -> None:
    load = open_load("nvml:GPU-aaaa1111-0000")
    assert isinstance(load, TorchLoad)
    began_s = time.monotonic()
    load.start()
    time.sleep(0.5)
    kernels = load.stop()
    assert began_s < kernels[0].begin_s
    assert all(kernel.duration_s > PRODUCT_S / 2 for kernel in kernels)
    assert all(after.begin_s >= before.end_s - 1e-6 for before, after in pairwise(kernels))
    assert kernels[-1].end_s <= time.monotonic() + PRODUCT_S
    load.close()


def test_a_gpu_that_torch_does_not_see_is_an_error(torch: FakeTorch) -> None:
    with pytest.raises(DeviceError, match="does not see"):
        open_load("nvml:GPU-bbbb")
    torch.available = False
    with pytest.raises(DeviceError, match="no CUDA device"):
        open_load("nvml:GPU-aaaa1111-0000")


def test_a_kernel_that_fails_is_an_error_of_the_recording(torch: FakeTorch, monkeypatch: pytest.MonkeyPatch) -> None:
    load = open_load("nvml:GPU-aaaa1111-0000")

    def fail(*factors: Any, out: object) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(torch, "mm", fail)
    load.start()
    with pytest.raises(DeviceError, match="out of memory"):
        load.stop()


@pytest.mark.usefixtures("sim_dir")
def test_simulated_kernels_take_the_same_time_each_however_late_this_process_is() -> None:
    gpu, load = SimulatedGpu("a"), SimulatedLoad("a")
    load.start()
    time.sleep(0.5)
    kernels = load.stop()
    assert all(kernel.duration_s == pytest.approx(0.0005, rel=1e-3) for kernel in kernels)
    load.close()
    gpu.close()


@pytest.mark.usefixtures("sim_dir")
def test_the_end_of_a_simulated_instruction_is_known_before_it_is_there() -> None:
    kernels = SimulatedKernels("a", time_scale=1)
    began_ns = time.monotonic_ns()
    kernels.start("forward")
    started_ns = time.monotonic_ns()
    takes_ns = kernels.model("forward", 0).time_s(1410) * 1e9
    assert began_ns - 2 <= kernels.ended_ns - takes_ns <= started_ns + 2
    kernels.close()
