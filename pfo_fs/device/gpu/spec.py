"""Opens the GPU that a spec names, and chooses the way to set its clocks.

A *spec* names a GPU across processes: `nvml:GPU-<uuid>`, `amd:<PCI address>`, `simulated:<name>`, or `none`. A GPU is
never found by its number, since LOCAL_RANK and CUDA's ordinals differ from NVML's. The clock process imports this
module, so it imports little before it knows which kind of GPU it opens.

A further way to set clocks is a module in `clock_backends` with a `ClockBackend`, a name in `_PROGRAMS` and in `ways`
of the GPUs that it sets, and two lines in `BackedGpu._open`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, cast

from pfo_fs.device.gpu.driver_errors import patiently
from pfo_fs.device.gpu.interface import POWER_CAP, ClockBackend, DryRunGpu, Gpu, MeasuresOnly, NoGpu, ReadThrough
from pfo_fs.errors import DeviceError, DevicePermissionError

if TYPE_CHECKING:
    from pfo_fs.device.gpu.amd import AmdGpu
    from pfo_fs.device.gpu.nvml import NvmlGpu

_PROGRAMS = ("zeusd", "sudo")
"""Ways that go through another program, by their modules, which are imported only when they are used: the clock process
must start fast."""
NAMES = ("auto", "nvml", *_PROGRAMS, "amdsmi", "none", POWER_CAP)
"""What a user can ask for; `auto` tries the `ways` of a GPU in their order."""


class BackedGpu(ReadThrough):
    """A GPU (`Gpu`) that is read as before, and whose clocks and power limit are set in the chosen way.

    The first change chooses the way: a way is left out if its `why_not` gives a reason, or if it refuses this change.
    Later changes use the same way. Opening and closing change nothing.

    Args:
        gpu: The object that reads the GPU and, in the ways `nvml` and `amdsmi`, also sets it.
        choice: One of `NAMES`.
    """

    def __init__(self, gpu: Gpu, choice: str) -> None:
        super().__init__(gpu)
        self.shows_clock = gpu.shows_clock  # in whatever way it was locked
        self._works: tuple[str, ...] = getattr(gpu, "ways", ())
        self._why_not_auto = str(getattr(gpu, "why_not_auto", "")) if choice == "auto" else ""
        automatic = () if self._why_not_auto else self._works
        self._ways = (*automatic, "none") if choice == "auto" else (choice,)
        self._asked = choice != "auto"
        self._chosen: ClockBackend | None = None
        self.clock_backend = "none"
        """The chosen way; before that, and where none works, `none`."""

    def try_reset(self) -> str:
        """Chooses a way by resetting the clocks; returns why none works, way by way, or an empty string.

        If the GPU lists no clocks, none can be set: then the GPU's reason is returned.
        """
        try:
            self._change(lambda backend: patiently(backend.reset_clocks), passes_on=DeviceError)
        except DeviceError as error:
            return str(error)
        return self._why_no_list()

    def reasons(self) -> dict[str, str]:
        """Returns, for each way in the order of `auto`, why it cannot be used here; '' if it seems to work.

        Changes nothing, so a way that seems to work can still be refused.
        """
        found = {}
        for way in self._ways:
            backend = self._open(way)
            found[way] = backend.why_not() or self._why_no_list()
            self._leave(backend)
        return found

    def _why_no_list(self) -> str:
        return "" if self._gpu.supported_clocks_mhz() else str(getattr(self._gpu, "why_no_clocks", "it has no clocks"))

    def lock_clock_mhz(self, mhz: int) -> None:
        self._change(lambda backend: backend.lock_clock_mhz(mhz))

    def reset_clocks(self) -> None:
        self._change(lambda backend: backend.reset_clocks())

    def set_power_limit_w(self, limit_w: float) -> None:
        self._change(lambda backend: backend.set_power_limit_w(limit_w))

    def _change(
        self, change: Callable[[ClockBackend], None], passes_on: type[DeviceError] = DevicePermissionError
    ) -> None:
        """Makes a change; the first one tries the ways in turn.

        Args:
            passes_on: After such an error of the first change, the next way is tried.

        Raises:
            DevicePermissionError: No way works.
            DeviceError: The change failed for another reason.
        """
        if self._chosen is not None:
            change(self._chosen)
            return
        reasons: dict[str, str] = {}
        for way in self._ways:
            backend = self._open(way)
            reason = backend.why_not()
            if not reason:
                try:
                    change(backend)
                except passes_on as error:
                    reason = str(error)
                except DeviceError:
                    self._chosen, self.clock_backend = backend, way
                    raise
                else:
                    self._chosen, self.clock_backend = backend, way
                    return
            reasons[way] = reason
            self._leave(backend)
        if len(reasons) == 1:
            raise DevicePermissionError(next(iter(reasons.values())))
        tried = "; ".join(f"{name}: {reason}" for name, reason in reasons.items() if name != "none")
        raise DevicePermissionError(f"no way to set clocks works here, so they stay at their default. Tried: {tried}")

    def _open(self, way: str) -> ClockBackend:
        if way == "none":
            alone = "clock_backend is 'none': clocks and power limits are left alone, and training is measured"
            return MeasuresOnly(self._why_not_auto or alone)
        if way not in self._works:
            return MeasuresOnly(f"the way {way} does not work with {self._gpu.name}")
        gpu = cast("NvmlGpu | AmdGpu", self._gpu)
        if way == gpu.clock_backend:
            return gpu
        try:
            place = gpu.place()
        except DeviceError as error:  # NVML cannot say where the GPU is
            return MeasuresOnly(str(error))
        if way == "zeusd":
            from pfo_fs.device.clock_backends.zeusd import ZeusdBackend

            return ZeusdBackend(place, alone=gpu.clock_backend == "nvml")
        from pfo_fs.device.clock_backends.sudo import SudoBackend

        return SudoBackend(place, asked=self._asked)

    def _leave(self, backend: ClockBackend) -> None:
        """Closes a way that is not used, unless it is the GPU, which is still read."""
        read: object = self._gpu
        if backend is not read:
            backend.close()

    def close(self) -> None:
        if self._chosen is not None:
            self._leave(self._chosen)
        super().close()


def open_gpu(spec: str, clock_backend: str = "auto") -> Gpu:
    """Opens the GPU that `spec` names, read-only if `PFO_FS_DRY_RUN` is set.

    Args:
        clock_backend: The way to set clocks: one of `NAMES`. On simulated GPUs, `none` sets no clocks, `power-cap` sets
            power limits, and all others are alike.

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
            gpu = BackedGpu(gpu, clock_backend)
    elif kind in ("nvml", "amd") and name:
        real = import_module(f"pfo_fs.device.gpu.{kind}")
        gpu = real.NvmlGpu(name) if kind == "nvml" else real.AmdGpu(name)
        setter = "auto" if kind == "nvml" else "amdsmi"
        gpu = BackedGpu(gpu, setter if clock_backend == POWER_CAP else clock_backend)
    else:
        known = "nvml:GPU-<UUID> (`nvidia-smi -L` lists them), amd:<PCI address>, simulated:<name> or none"
        raise DeviceError(f"{spec!r} does not name a GPU; use {known}")
    if clock_backend == POWER_CAP:
        from pfo_fs.device.clock_backends.power_cap import PowerCapGpu

        gpu = PowerCapGpu(gpu)
    if os.environ.get("PFO_FS_DRY_RUN", "") not in ("", "0"):
        return DryRunGpu(gpu, os.environ.get("PFO_FS_DRY_RUN_LOG") or None)
    return gpu


def load_all_ways() -> None:
    """Imports now what `open_gpu`, and the GPU that it opens, would import later."""
    ours = ("gpu.nvml", "gpu.amd", "simulated.gpu", *(f"clock_backends.{way}" for way in (*_PROGRAMS, "power_cap")))
    for name in ("pynvml", *(f"pfo_fs.device.{name}" for name in ours)):
        with suppress(Exception):  # what cannot be imported cannot be used either
            import_module(name)


def open_to_set(spec: str, leave_clocks: bool, clock_backend: str) -> tuple[Gpu, str]:
    """Returns the GPU, and why its clocks cannot be set, or ''. Unless `leave_clocks`, resets its clocks."""
    try:
        gpu = open_gpu(spec, clock_backend)
        return gpu, "this process was started to leave the clocks alone" if leave_clocks else gpu.try_reset()
    except DeviceError as error:
        return NoGpu(str(error)), str(error)
