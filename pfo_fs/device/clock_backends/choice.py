"""Chooses the way to set a GPU's clocks, and puts it together with reading through NVML.

A further way is a module beside this one with a `ClockBackend`, and an entry in `_OPENED_BY`.
"""

from __future__ import annotations

from collections.abc import Callable

from pfo_fs.device.gpu.driver_errors import patiently
from pfo_fs.device.gpu.interface import ClockBackend, Gpu, GpuPlace, MeasuresOnly, ReadThrough
from pfo_fs.errors import DeviceError, DevicePermissionError


def _zeusd(place: GpuPlace, asked: bool) -> ClockBackend:
    from pfo_fs.device.clock_backends.zeusd import ZeusdBackend

    return ZeusdBackend(place)


def _sudo(place: GpuPlace, asked: bool) -> ClockBackend:
    from pfo_fs.device.clock_backends.sudo import SudoBackend

    return SudoBackend(place, asked=asked)


_OPENED_BY: dict[str, Callable[[GpuPlace, bool], ClockBackend]] = {"zeusd": _zeusd, "sudo": _sudo}
"""Ways that go through another program: each is opened for a GPU, and told whether the user has asked for it by name.
Its module is imported only then, because the clock process must start fast."""
MODULES = tuple(_OPENED_BY)
"""The modules beside this one that are imported only when they are needed."""
NAMES = ("auto", "nvml", *_OPENED_BY, "none")
"""What a user can ask for; `auto` tries the others in this order."""


class BackedGpu(ReadThrough):
    """A GPU (`Gpu`) that is read as before, and whose clocks and power limit are set in the chosen way.

    The first change chooses: each way whose discovery says that it cannot is left out, and so is each one that refuses
    this change. Later changes use the same way. Opening and closing change nothing.

    Args:
        gpu: Reads. With the way `nvml`, it also sets.
        choice: One of `NAMES`.
    """

    def __init__(self, gpu: Gpu, choice: str) -> None:
        super().__init__(gpu)
        self.shows_clock = gpu.shows_clock  # in whatever way it was locked
        self._ways = NAMES[1:] if choice == "auto" else (choice,)
        self._asked = choice != "auto"
        self._chosen: ClockBackend | None = None
        self.clock_backend = "none"
        """The chosen way; before that, and where none works, `none`."""

    def try_reset(self) -> str:
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
        raise DevicePermissionError(_no_way(reasons))

    def _open(self, way: str) -> ClockBackend:
        from pfo_fs.device.gpu.nvml import NvmlGpu

        if way == "none":
            return MeasuresOnly(
                "clock_backend is 'none': clocks and power limits are left alone, and training is measured"
            )
        if not isinstance(self._gpu, NvmlGpu):
            return MeasuresOnly(f"the way {way} is for NVIDIA GPUs")
        if way == "nvml":
            return self._gpu
        try:
            place = self._gpu.place()
        except DeviceError as error:  # NVML cannot say where the GPU is
            return MeasuresOnly(str(error))
        return _OPENED_BY[way](place, self._asked)

    def _leave(self, backend: ClockBackend) -> None:
        """Closes a way that is not used, unless it is the GPU, which is still read."""
        read: object = self._gpu
        if backend is not read:
            backend.close()

    def close(self) -> None:
        if self._chosen is not None:
            self._leave(self._chosen)
        super().close()


def _no_way(reasons: dict[str, str]) -> str:
    if len(reasons) == 1:
        return next(iter(reasons.values()))
    tried = "; ".join(f"{name}: {reason}" for name, reason in reasons.items() if name != "none")
    return f"no way to set clocks works here, so they stay at their default. Tried: {tried}"
