"""How the clock process learns which instruction runs: from the device, or from the training thread.

- `device`: the device itself writes into the page how far it has come. Training is not held up, however far it launches
  ahead.
- `launch`: the time of the callbacks counts. Right where the training thread waits for each instruction anyway.
- `sync`: the training thread waits for the device at each mark, as Zeus's optimizer does. Right, but training cannot
  launch ahead any more. For comparisons.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from pfo_fs.device import shared_page
from pfo_fs.errors import ConfigError, DeviceError
from pfo_fs.training.progress_marker import ProgressMarker, SynchronizedMarks
from pfo_fs.training.tracked_clocks import Clocks

if TYPE_CHECKING:
    from pfo_fs.device import SimulatedKernels

Switching = Literal["auto", "device", "launch", "sync"]
MODES = ("auto", "device", "launch", "sync")


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


def checked_switching(asked: str) -> str:
    """Returns the mode that is asked for.

    Raises:
        ConfigError: It is not one of `MODES`.
    """
    if asked not in MODES:
        raise ConfigError(f"switching={asked!r}: use one of {', '.join(MODES)}")
    return asked


def choose_switching(asked: str, clocks: Clocks, spec: str, kernels: SimulatedKernels | None) -> ChosenSwitching:
    """Returns the mode that works here; `launch`, with the reason, where the one asked for does not.

    Args:
        asked: One of `MODES`; `auto` is `device` where that passes its self-test, otherwise `launch`.
        clocks: The clock process.
        spec: The GPU, as `find_gpu_spec` names it.
        kernels: The simulated GPU; None on a real one.
    """
    if asked == "launch":
        return ChosenSwitching("launch", None, "")
    try:
        if asked == "sync":
            marks = SynchronizedMarks(clocks.words, _synchronize_of(kernels))
            return ChosenSwitching("sync", ProgressMarker(clocks, marks.write), "")
        write, how = _device_marks(clocks, spec, kernels)
        return ChosenSwitching("device", ProgressMarker(clocks, write), how)
    except DeviceError as error:
        return ChosenSwitching("launch", None, f"not at device time: {error}")


def _synchronize_of(kernels: SimulatedKernels | None) -> Callable[[], object]:
    if kernels is not None:
        return kernels.stream.synchronize
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        raise DeviceError("training does not use a CUDA device of torch")
    synchronize: Callable[[], object] = torch.cuda.synchronize
    return synchronize


def _device_marks(clocks: Clocks, spec: str, kernels: SimulatedKernels | None) -> tuple[Callable[[int], None], str]:
    if kernels is not None:
        return _simulated_marks(clocks, kernels), "simulated stream"
    torch: Any = sys.modules.get("torch")
    if not spec.startswith("nvml:") or torch is None or not torch.cuda.is_available():
        raise DeviceError("training does not use a CUDA device of torch")
    raise DeviceError("stream marks are not there yet")


def _simulated_marks(clocks: Clocks, kernels: SimulatedKernels) -> Callable[[int], None]:
    words, stream = clocks.words, kernels.stream

    def enqueue(point: int) -> None:
        def write() -> None:
            words[shared_page.PROGRESS] = point

        stream.call(write)

    return enqueue
