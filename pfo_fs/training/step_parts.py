"""Makes what follows a step in the training process, for the GPU that this rank has."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from pfo_fs.device.metering.step_metrics import StepMetrics
from pfo_fs.training.instruction_tracker import InstructionTracker
from pfo_fs.training.switching import ChosenSwitching, choose_switching

if TYPE_CHECKING:
    from pfo_fs.device.clock_client import ClockProcess
    from pfo_fs.device.simulated.gpu import SimulatedKernels
    from pfo_fs.training.job_request import JobRequest
    from pfo_fs.training.parallel_dims import ParallelDims

log = logging.getLogger("pfo_fs")


@dataclass(frozen=True)
class StepParts:
    """What follows the steps of one process.

    Attributes:
        kernels: The computing side of a simulated GPU; None on real ones.
        switching: When clocks are switched.
        tracker: Follows the instructions.
        metrics: Averages over steps.
    """

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
        takes_error: Callable[[BaseException], bool],
    ) -> StepParts:
        """Makes the parts.

        Args:
            on_problem: Called with a text if something does not work as asked.
            on_mismatch, takes_error: As for `InstructionTracker`.
        """
        asked, spec = request.switching, clocks.spec
        kernels = _open_kernels(spec, dims.pp_degree)
        chosen = ChosenSwitching("launch", None, "")
        if clocks.info.clocks_mhz:  # otherwise no clock is set, and marks would cost time for nothing
            chosen = choose_switching(asked, clocks, spec, kernels, device=request.device, on_problem=on_problem)
            if chosen.note:
                log.info("rank %d switches clocks at %s time: %s", dims.rank, chosen.mode, chosen.note)
            if chosen.mode != asked != "auto":
                on_problem(f"switching={asked!r} does not work here, clocks follow the callbacks: {chosen.note}")
        make_event = _event_maker(spec, kernels, request.device_events)
        make_tracker: Callable[..., InstructionTracker] = InstructionTracker
        if make_event is not None:
            from pfo_fs.training.cuda_event_tracker import CudaEventTracker

            make_tracker = partial(CudaEventTracker, make_event=make_event)
        tracker = make_tracker(
            clocks,
            profile_steps=request.settings.profile_steps,
            on_mismatch=on_mismatch,
            on_wrong_marks=on_problem,
            takes_error=takes_error,
            marker=chosen.marker,
        )
        return cls(kernels, chosen, tracker, StepMetrics([clocks.words]))


def _open_kernels(spec: str, stages: int) -> SimulatedKernels | None:
    kind, _, name = spec.partition(":")
    if kind != "simulated":
        return None
    from pfo_fs.device.simulated.gpu import SimulatedKernels

    return SimulatedKernels(name, stages=stages)


def _event_maker(spec: str, kernels: SimulatedKernels | None, device_events: bool | None) -> Callable[[], Any] | None:
    """Returns what makes an event with timing on the device; None if the training thread's times are used."""
    if kernels is not None:
        from pfo_fs.device.simulated.stream import SimulatedEvent

        return partial(SimulatedEvent, kernels.stream)
    if device_events is None:
        device_events = spec.startswith("nvml:") and "torch" in sys.modules
    if device_events:
        import torch

        if torch.cuda.is_available():
            return partial(torch.cuda.Event, enable_timing=True)
    return None
