"""Chooses the way to set a GPU's clocks, and puts it together with reading through NVML."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from pfo_fs.device.clock_backends.interface import NAMES, ClockBackend, MeasuresOnly
from pfo_fs.device.gpu.pauses import patiently
from pfo_fs.errors import DeviceError, DevicePermissionError

if TYPE_CHECKING:
    from pfo_fs.device.gpu.interface import Gpu


class BackedGpu:
    """A GPU (`Gpu`) that is read as before, and whose clocks and power limit are set in the chosen way.

    The first change chooses: each way whose discovery says that it cannot is left out, and so is each one that refuses
    this change. Later changes use the same way. Opening and closing change nothing.

    Args:
        gpu: Reads. With the way `nvml`, it also sets.
        choice: One of `NAMES`.
    """

    def __init__(self, gpu: Gpu, choice: str) -> None:
        self._gpu = gpu
        self._ways = NAMES[1:] if choice == "auto" else (choice,)
        self._asked = choice != "auto"
        self._chosen: ClockBackend | None = None
        self._held_by = "none"
        self.name = gpu.name
        self.uuid = gpu.uuid

    @property
    def clock_backend(self) -> str:
        """The chosen way; `slurm-step` if Slurm holds the clock for the whole step; otherwise `none`."""
        return self._chosen.name if self._chosen is not None else self._held_by

    # ---- setting

    def why_clocks_stay(self) -> str:
        """Chooses a way by resetting the clocks; returns why none works, way by way, or an empty string.

        Without a list of clocks none can be chosen, so that the GPU's reason is returned then.
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
        for backend in self._backends():
            found[backend.name] = backend.why_not() or self._why_no_list()
            backend.close()
        return found

    def _why_no_list(self) -> str:
        return "" if self._gpu.supported_clocks_mhz() else str(getattr(self._gpu, "why_no_clocks", "it has no clocks"))

    def lock_clock_mhz(self, mhz: int) -> None:
        """Holds the graphics clock at `mhz`; raises as described in `Gpu`."""
        self._change(lambda backend: backend.lock_clock_mhz(mhz))

    def reset_clocks(self) -> None:
        """Lets the driver choose the graphics clock again."""
        self._change(lambda backend: backend.reset_clocks())

    def shows_clock(self, mhz: int) -> bool | None:
        """Returns whether the GPU shows that it is still locked at `mhz`, in whatever way it was locked."""
        return self._gpu.shows_clock(mhz)

    def set_power_limit_w(self, limit_w: float) -> None:
        """Sets the power limit, in watts; raises as described in `Gpu`."""
        self._change(lambda backend: backend.set_power_limit_w(limit_w))

    def _change(
        self, change: Callable[[ClockBackend], None], passes_on: type[DeviceError] = DevicePermissionError
    ) -> None:
        """Makes a change; the first one tries the ways in turn.

        Args:
            change: Makes the change in the way that it is given.
            passes_on: After such an error of the first change, the next way is tried.

        Raises:
            DevicePermissionError: No way works.
            DeviceError: The change failed for another reason.
        """
        if self._chosen is not None:
            change(self._chosen)
            return
        reasons: dict[str, str] = {}
        for backend in self._backends():
            reason = backend.why_not()
            if not reason:
                try:
                    change(backend)
                except passes_on as error:
                    reason = str(error)
                except DeviceError:
                    self._chosen = backend
                    raise
                else:
                    self._chosen = backend
                    return
            reasons[backend.name] = reason
            backend.close()
        raise DevicePermissionError(_no_way(reasons))

    def _backends(self) -> Iterator[ClockBackend]:
        for name in self._ways:
            try:
                yield self._make(name)
            except DeviceError as error:  # NVML cannot say where the GPU is
                failed = MeasuresOnly(str(error))
                failed.name = name
                yield failed

    def _make(self, name: str) -> ClockBackend:
        """Returns the way `name`. Modules are imported here, because the clock process must start fast."""
        if name == "slurm-step":
            from pfo_fs.device.clock_backends.slurm_step import SlurmStepBackend

            step = SlurmStepBackend(self._gpu.supported_clocks_mhz())
            if step.requested:
                self._held_by = step.name
            return step
        if name == "none":
            return MeasuresOnly(
                "clock_backend is 'none': clocks and power limits are left alone, and training is measured"
            )
        return self._make_setting(name)

    def _make_setting(self, name: str) -> ClockBackend:
        from pfo_fs.device.gpu.nvml import NvmlGpu

        if not isinstance(self._gpu, NvmlGpu):
            raise DeviceError(f"the way {name} is for NVIDIA GPUs")
        if name == "nvml":
            from pfo_fs.device.clock_backends.nvml import NvmlBackend

            return NvmlBackend(self._gpu)
        if name == "zeusd":
            from pfo_fs.device.clock_backends.zeusd import ZeusdBackend

            return ZeusdBackend(self._gpu.place())
        if name == "sudo":
            from pfo_fs.device.clock_backends.sudo import SudoBackend

            return SudoBackend(self._gpu.place(), asked=self._asked)
        from pfo_fs.device.clock_backends.geopm import GeopmBackend

        return GeopmBackend(self._gpu.place())

    # ---- reading

    def supported_clocks_mhz(self) -> list[int]:
        """Returns the graphics clocks that can be locked, in MHz, highest first."""
        return self._gpu.supported_clocks_mhz()

    def power_limit_range_w(self) -> tuple[float, float]:
        """Returns the lowest and the highest power limit that can be set, in watts."""
        return self._gpu.power_limit_range_w()

    def power_limit_w(self) -> float:
        """Returns the power limit in force, in watts."""
        return self._gpu.power_limit_w()

    def energy_j(self) -> float:
        """Returns the reading of the energy counter, in joules."""
        return self._gpu.energy_j()

    @property
    def energy_breaks(self) -> int:
        """How often it was not known what was consumed between two readings."""
        return self._gpu.energy_breaks

    def throttled(self) -> str:
        """Returns what holds the clock below the requested one; empty if nothing does."""
        return self._gpu.throttled()

    def close(self) -> None:
        """Ends the use of the GPU."""
        if self._chosen is not None:
            self._chosen.close()
        self._gpu.close()


def _no_way(reasons: dict[str, str]) -> str:
    if len(reasons) == 1:
        return next(iter(reasons.values()))
    tried = "; ".join(f"{name}: {reason}" for name, reason in reasons.items() if name != "none")
    return f"no way to set clocks works here, so they stay at their default. Tried: {tried}"
