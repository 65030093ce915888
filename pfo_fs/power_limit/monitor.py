"""Time and energy of windows of training, per GPU. `EnergyMonitor` is used like `zeus.monitor.ZeusMonitor`."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from pfo_fs.device.gpu.find_gpu import find_gpu_spec
from pfo_fs.device.simulated.gpu import SimulatedKernels
from pfo_fs.errors import ConfigError, DeviceError
from pfo_fs.power_limit.gpus import EnergyReading, KnobGpu, close_all, read_energies
from pfo_fs.power_limit.measurements import Knob


class Monitor(Protocol):
    """The methods that the optimizer needs of a monitor; a `ZeusMonitor` also has them."""

    @property
    def gpu_indices(self) -> Sequence[int]:
        """CUDA device indices of this process."""

    def begin_window(self, key: str) -> None:
        """Begins a window of measurement."""

    def end_window(self, key: str, *, cancel: bool = False) -> Measurement:
        """Returns what was measured; with `cancel`, the result has no meaning. Zeus's result is alike."""


class Measurement(NamedTuple):
    """The measurement of a window: its time in s, and the energy in J by the GPU's index."""

    time: float
    gpu_energy: dict[int, float]

    @property
    def total_energy(self) -> float:
        return sum(self.gpu_energy.values())


class EnergyMonitor:
    """Measures windows of training: time, and energy of each GPU.

    Args:
        gpu_indices: CUDA device indices of this process; the current device if None.
        specs: Instead of `gpu_indices`: the GPUs by spec (`simulated:<name>`, `nvml:<UUID>`), counted from 0.
        knob: What an optimizer that uses this monitor sets. For another knob, the optimizer starts one more process for
            each GPU.
    """

    def __init__(
        self,
        gpu_indices: Sequence[int] | None = None,
        *,
        specs: Sequence[str] | None = None,
        knob: Knob = "power_limit",
    ) -> None:
        if specs is None:
            specs = [spec_of(index) for index in (gpu_indices if gpu_indices is not None else (None,))]
            self._devices = list(gpu_indices) if gpu_indices is not None else []
        elif gpu_indices is not None:
            raise ConfigError("name GPUs by gpu_indices or by specs, not by both")
        else:
            self._devices = []
        if not specs:
            raise ConfigError("a monitor needs at least one GPU; gpu_indices or specs is empty")
        self.gpu_indices: list[int] = self._devices or list(range(len(specs)))
        self.gpus: list[KnobGpu] = [KnobGpu(spec, knob) for spec in specs]
        self._open: dict[str, tuple[float, list[EnergyReading]]] = {}

    def begin_window(self, key: str, sync_execution: bool = True) -> None:
        """Begins a window; several, with other names, may be open at once.

        With `sync_execution`, first waits until the GPUs have finished launched work, which is then not in the window.

        Raises:
            ConfigError: The window is open already.
            DeviceError: As `read_energies`.
        """
        if key in self._open:
            raise ConfigError(f"window {key!r} has begun already; end it first")
        self._open[key] = self._read(sync_execution)

    def end_window(self, key: str, sync_execution: bool = True, cancel: bool = False) -> Measurement:
        """Ends a window and returns what was measured; with `cancel`, zeros.

        Raises:
            ConfigError: No such window is open.
            DeviceError: Energy cannot be read, or the consumed energy is not known; as in `begin_window`.
        """
        if key not in self._open:
            raise ConfigError(f"window {key!r} has not begun; open are: {', '.join(self._open) or 'none'}")
        began_s, begun = self._open.pop(key)
        if cancel:
            return Measurement(0.0, dict.fromkeys(self.gpu_indices, 0.0))
        ended_s, ended = self._read(sync_execution)
        if any(now.breaks != before.breaks for now, before in zip(ended, begun, strict=True)):
            raise DeviceError("the energy counter was set back, or could not be read, within the window")
        consumed = (now.energy_j - before.energy_j for now, before in zip(ended, begun, strict=True))
        return Measurement(ended_s - began_s, dict(zip(self.gpu_indices, consumed, strict=True)))

    def _read(self, sync_execution: bool) -> tuple[float, list[EnergyReading]]:
        torch = sys.modules.get("torch")
        if sync_execution and torch is not None and torch.cuda.is_initialized():
            for device in self._devices or [torch.cuda.current_device()]:
                torch.cuda.synchronize(device)
        for gpu in self.gpus:
            _ = gpu.clocks.info  # waits until the clock process has started
        before_s = time.monotonic()
        energies = read_energies(self.gpus)
        return (before_s + time.monotonic()) / 2, energies

    def simulated_kernels(self, time_scale: float | None = None) -> SimulatedKernels | None:
        """Returns the kernels of the first GPU if that is simulated."""
        kind, _, name = self.gpus[0].spec.partition(":")
        return SimulatedKernels(name, time_scale=time_scale) if kind == "simulated" else None

    def close(self) -> None:
        """Restores power limits or clocks, and ends the clock processes of the GPUs."""
        close_all(self.gpus)


def spec_of(index: int | None) -> str:
    """Returns the spec of a CUDA device of this process; `none:` and the reason if it cannot be used."""
    try:
        return find_gpu_spec(index)
    except DeviceError as error:
        return f"none:{error}"


def gpus_of(monitor: Monitor, knob: Knob) -> list[KnobGpu]:
    """Returns the GPUs that a monitor measures, to set a knob; opens them anew if it has them for another knob."""
    if isinstance(monitor, EnergyMonitor):
        if all(gpu.knob == knob for gpu in monitor.gpus):
            return monitor.gpus
        return [KnobGpu(gpu.spec, knob) for gpu in monitor.gpus]
    specs = dict.fromkeys(spec_of(index) for index in monitor.gpu_indices)
    return [KnobGpu(spec, knob) for spec in specs]
