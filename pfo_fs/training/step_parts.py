"""Makes what follows a step in the training process, for the GPU that this rank has."""

from __future__ import annotations

import logging
import sys
import time
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
        *,
        rank: int,
        stages: int,
        switching: str,
        device: int | None,
        device_events: bool | None,
        on_problem: Callable[[str], None],
        **for_tracker: Any,
    ) -> StepParts:
        """Makes the parts.

        Args:
            clocks: The clock process.
            rank: Global rank, for messages.
            stages: Number of stages of the pipeline.
            switching: When clocks are switched, as the user asks for it.
            device: CUDA device index of this process; the current one if None.
            device_events: As for `PFOFileOptimizer`.
            on_problem: Called with a text if something does not work as asked.
            for_tracker: Arguments of the tracker.
        """
        kernels = _open_kernels(clocks.spec, stages)
        chosen = ChosenSwitching("launch", None, "")
        if clocks.info.clocks_mhz:  # otherwise no clock is set, and marks would cost time for nothing
            chosen = choose_switching(switching, clocks, clocks.spec, kernels, device=device, on_problem=on_problem)
            if chosen.note:
                log.info("rank %d switches clocks at %s time: %s", rank, chosen.mode, chosen.note)
            if chosen.mode != switching != "auto":
                on_problem(f"switching={switching!r} does not work here, clocks follow the callbacks: {chosen.note}")
        for_tracker = {**for_tracker, "on_wrong_marks": on_problem, "marker": chosen.marker}
        make_event = _event_maker(clocks.spec, kernels, device_events)
        if make_event is None:
            tracker = InstructionTracker(clocks, **for_tracker)
        else:
            from pfo_fs.training.cuda_event_tracker import CudaEventTracker

            tracker = CudaEventTracker(clocks, make_event, **for_tracker)
        return cls(kernels, chosen, tracker, StepMetrics([clocks.words]))


class IterationTimer:
    """Times iterations from the begin of one step to the begin of the next."""

    def __init__(self) -> None:
        self._began_s = 0.0

    def begin(self) -> float | None:
        """Begins an iteration; returns how long the one before took, in s; None for the first."""
        now_s = time.monotonic()
        took_s = now_s - self._began_s if self._began_s else None
        self._began_s = now_s
        return took_s


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
