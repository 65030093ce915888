"""Makes the parts that follow this rank's steps on its GPU; above all, how its clock process learns what runs now.

- `device`: the device itself writes into the page how far it has come. Training is not held up, however far it launches
  ahead.
- `launch`: the time of the callbacks counts. This is right if the training thread waits for each instruction anyway.
"""

from __future__ import annotations

import ctypes
import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Literal, get_args

from pfo_fs.device import shared_page
from pfo_fs.device.metering.step_metrics import StepMetrics
from pfo_fs.errors import DeviceError
from pfo_fs.training.instruction_tracker import InstructionTracker
from pfo_fs.training.progress_marker import ProgressMarker

if TYPE_CHECKING:
    from pfo_fs.device.clock_client import ClockProcess
    from pfo_fs.device.simulated.gpu import SimulatedKernels
    from pfo_fs.training.job_request import JobRequest
    from pfo_fs.training.parallel_dims import ParallelDims

log = logging.getLogger("pfo_fs")

Switching = Literal["auto", "device", "launch"]
MODES: tuple[Switching, ...] = get_args(Switching)

_registered: list[memoryview] = []
"""Pages that CUDA writes to; they must stay mapped."""


@dataclass(frozen=True)
class ChosenSwitching:
    """How clocks are switched in this process.

    Attributes:
        note: For people: how clocks are switched, or why not in the requested way.
    """

    marker: ProgressMarker | None = None
    note: str = ""

    @property
    def mode(self) -> str:
        """`device`; else, and after marks have failed, `launch`."""
        return "device" if self.marker is not None and self.marker.works else "launch"


def choose_switching(
    asked: str,
    clocks: ClockProcess,
    spec: str,
    kernels: SimulatedKernels | None = None,
    *,
    device: int | None = None,
    on_problem: Callable[[str], None] = lambda text: None,
) -> ChosenSwitching:
    """Returns the mode that works here; `launch`, with the reason, if the requested mode does not work.

    Args:
        spec: The GPU, as `find_gpu_spec` names it; `kernels` is not None if it is simulated.
        device: CUDA device index of this process; None for torch's current device.
        on_problem: Called with a text, perhaps repeatedly, if marks of the device's progress fail later.
    """
    if asked == "launch":
        return ChosenSwitching()
    words = clocks.words
    if kernels is not None:
        stream = kernels.stream

        def write(point: int) -> None:
            stream.call(partial(words.__setitem__, shared_page.PROGRESS, point))

        return ChosenSwitching(ProgressMarker(clocks, write, on_problem), "simulated stream")
    if (torch := _torch_of(spec)) is None:
        return ChosenSwitching(None, "not at device time: training does not use a CUDA device of torch")
    from pfo_fs.training.stream_marks import open_stream_marks

    # CUDA keeps the page registered until the process ends: giving it back would wait for the device.
    _registered.append(words)
    address = ctypes.addressof(ctypes.c_char.from_buffer(words)) + 8 * shared_page.PROGRESS
    try:
        marks = open_stream_marks(address, torch.cuda.current_device() if device is None else device)
    except DeviceError as error:
        return ChosenSwitching(None, f"not at device time: {error}")
    return ChosenSwitching(ProgressMarker(clocks, marks.write, on_problem), "stream write")


def _torch_of(spec: str) -> ModuleType | None:
    """Returns torch if training uses it on a real GPU; else None."""
    torch = sys.modules.get("torch")
    return torch if spec.startswith("nvml:") and torch is not None and torch.cuda.is_available() else None


@dataclass(frozen=True)
class StepParts:
    """The parts that follow a process's steps; `kernels`: the computing side of a simulated GPU, None on real ones."""

    kernels: SimulatedKernels | None
    switching: ChosenSwitching
    tracker: InstructionTracker
    metrics: StepMetrics

    @classmethod
    def make(
        cls,
        clocks: ClockProcess,
        request: JobRequest,
        dims: ParallelDims,
        *,
        on_problem: Callable[[str], None],
        on_mismatch: Callable[[int, str, str], None],
        on_wrong_marks: Callable[[str], None],
        takes_error: Callable[[BaseException], bool],
    ) -> StepParts:
        """Makes the parts; calls `on_problem` with a text if something does not work as asked."""
        asked, spec = request.switching, clocks.spec
        kernels: SimulatedKernels | None = None
        kind, _, name = spec.partition(":")
        if kind == "simulated":
            from pfo_fs.device.simulated.gpu import SimulatedKernels

            kernels = SimulatedKernels(name, stages=dims.pp_degree)
        chosen = ChosenSwitching()
        if clocks.info.clocks_mhz:  # otherwise no clock is set, and marks would cost time for nothing
            chosen = choose_switching(asked, clocks, spec, kernels, device=request.device, on_problem=on_problem)
            if chosen.note:
                log.info("rank %d switches clocks at %s time: %s", dims.rank, chosen.mode, chosen.note)
            if chosen.mode != asked != "auto":
                on_problem(f"switching={asked!r} does not work here, clocks follow the callbacks: {chosen.note}")
        tracker = _tracker_maker(spec, kernels)(
            clocks,
            profile_steps=request.settings.profile_steps,
            on_mismatch=on_mismatch,
            on_wrong_marks=on_wrong_marks,
            takes_error=takes_error,
            marker=chosen.marker,
        )
        return cls(kernels, chosen, tracker, StepMetrics([clocks.words]))


def _tracker_maker(spec: str, kernels: SimulatedKernels | None) -> Callable[..., InstructionTracker]:
    """Returns the function that makes the tracker: with the device's own times if its events have times."""
    from pfo_fs.training.cuda_event_tracker import CudaEventTracker

    if kernels is not None:
        from pfo_fs.device.simulated.stream import SimulatedEvent

        return partial(CudaEventTracker, make_event=partial(SimulatedEvent, kernels.stream))
    if (torch := _torch_of(spec)) is None:
        return InstructionTracker
    is_capturing = torch.cuda.is_current_stream_capturing
    make_event = partial(torch.cuda.Event, enable_timing=True)
    return partial(CudaEventTracker, make_event=make_event, is_capturing=is_capturing)
