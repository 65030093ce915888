"""How the clock process learns which instruction runs: from the device, or from the training thread.

- `device`: the device itself writes into the page how far it has come. Training is not held up, however far it launches
  ahead.
- `launch`: the time of the callbacks counts. Right where the training thread waits for each instruction anyway.
- `sync`: the training thread waits for the device at each mark, as Zeus's optimizer does. Right, but training cannot
  launch ahead any more. For comparisons.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from pfo_fs.device import shared_page
from pfo_fs.errors import ConfigError, DeviceError
from pfo_fs.training.progress_marker import ProgressMarker

if TYPE_CHECKING:
    from pfo_fs.device.clock_client import ClockProcess
    from pfo_fs.device.simulated.gpu import SimulatedKernels

Switching = Literal["auto", "device", "launch", "sync"]
MODES = ("auto", "device", "launch", "sync")


_registered: list[memoryview] = []
"""Pages that CUDA writes to; they must stay mapped."""


@dataclass(frozen=True)
class ChosenSwitching:
    """How clocks are switched in this process.

    Attributes:
        mode: `device`, `launch` or `sync`.
        marker: Marks the progress; None for `launch`.
        note: For people: how it works, or why it is not what was asked for.
    """

    mode: str
    marker: ProgressMarker | None
    note: str

    @property
    def mode_now(self) -> str:
        """The mode, after marks may have failed."""
        return self.mode if self.marker is None or self.marker.works else "launch"

    def stop_marks(self) -> None:
        """Marks nothing any more: there is no clock process that would read the marks."""
        if self.marker is not None:
            self.marker.stop()


def checked_switching(asked: Switching) -> Switching:
    """Returns the mode that is asked for.

    Raises:
        ConfigError: It is not one of `MODES`.
    """
    if asked not in MODES:
        raise ConfigError(f"switching={asked!r}: use one of {', '.join(MODES)}")
    return asked


def choose_switching(
    asked: str,
    clocks: ClockProcess,
    spec: str,
    kernels: SimulatedKernels | None = None,
    *,
    device: int | None = None,
    on_problem: Callable[[str], None] = lambda text: None,
) -> ChosenSwitching:
    """Returns the mode that works here; `launch`, with the reason, where the one asked for does not.

    Args:
        asked: One of `MODES`; `auto` is `device` where that passes its self-test, otherwise `launch`.
        spec: The GPU, as `find_gpu_spec` names it.
        kernels: The simulated GPU; None on a real one.
        device: CUDA device index of this process; None for torch's current device.
        on_problem: Called with a text, once, if marks of the device's progress fail later.
    """
    if asked == "launch":
        return ChosenSwitching("launch", None, "")
    try:
        if asked == "sync":
            write = _synchronized_marks(clocks, _synchronize_of(kernels, device))
            return ChosenSwitching("sync", ProgressMarker(clocks, write, on_problem, waits=True), "")
        write, how = _device_marks(clocks, spec, kernels, device)
        return ChosenSwitching("device", ProgressMarker(clocks, write, on_problem), how)
    except DeviceError as error:
        return ChosenSwitching("launch", None, f"not at device time: {error}")


def _synchronized_marks(clocks: ClockProcess, synchronize: Callable[[], object]) -> Callable[[int], None]:
    def write(point: int) -> None:
        synchronize()  # the device has done all that was launched before
        clocks.words[shared_page.PROGRESS] = point

    return write


def _synchronize_of(kernels: SimulatedKernels | None, device: int | None) -> Callable[[], object]:
    if kernels is not None:
        return kernels.stream.synchronize
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        raise DeviceError("training does not use a CUDA device of torch")

    def synchronize() -> None:
        try:
            torch.cuda.synchronize(device)
        except RuntimeError as error:  # for example while a CUDA graph is captured
            raise DeviceError(f"waiting for the device: {error}") from error

    return synchronize


def _device_marks(
    clocks: ClockProcess, spec: str, kernels: SimulatedKernels | None, device: int | None
) -> tuple[Callable[[int], None], str]:
    if kernels is not None:
        return _simulated_marks(clocks, kernels), "simulated stream"
    torch: Any = sys.modules.get("torch")
    if not spec.startswith("nvml:") or torch is None or not torch.cuda.is_available():
        raise DeviceError("training does not use a CUDA device of torch")
    from pfo_fs.training.stream_marks import open_stream_marks

    # CUDA keeps the page registered until the process ends: giving it back would wait for the device.
    _registered.append(clocks.words)
    address = ctypes.addressof(ctypes.c_char.from_buffer(clocks.words)) + 8 * shared_page.PROGRESS
    marks = open_stream_marks(address, torch.cuda.current_device() if device is None else device)
    return marks.write, marks.how


def _simulated_marks(clocks: ClockProcess, kernels: SimulatedKernels) -> Callable[[int], None]:
    words, stream = clocks.words, kernels.stream

    def enqueue(point: int) -> None:
        def write() -> None:
            words[shared_page.PROGRESS] = point

        stream.call(write)

    return enqueue
