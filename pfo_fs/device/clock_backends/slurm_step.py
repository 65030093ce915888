"""Slurm's `srun --gpu-freq`: one clock for a whole step, set by Slurm as root and reset by it at the step's end.

Nothing can be changed while the step runs, so clocks stay as they are and training is measured at them. A user who runs
each stage as a step of its own gives each stage its clock.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from pfo_fs.device.clock_backends.interface import MeasuresOnly


class SlurmStepBackend(MeasuresOnly):
    """Recognises the clock of this Slurm step, and leaves it alone.

    Args:
        clocks_mhz: The clocks that the GPU offers, highest first.

    Attributes:
        requested: The `--gpu-freq` of this step, for the graphics clock; empty if it has none.
        clock_mhz: The clock in MHz that it means; 0 if that is not known.
    """

    def __init__(self, clocks_mhz: Sequence[int]) -> None:
        self.requested = _requested(os.environ.get("SLURM_GPU_FREQ", "")) if "SLURM_STEP_ID" in os.environ else ""
        self.clock_mhz = _clock_mhz(self.requested, sorted(clocks_mhz, reverse=True))
        super().__init__(self._why())

    def _why(self) -> str:
        if not self.requested:
            return "this process is not in a Slurm step that was started with --gpu-freq"
        runs = f"at {self.clock_mhz} MHz" if self.clock_mhz else f"at --gpu-freq={self.requested}"
        return (
            f"clocks cannot change during the Slurm step: this stage runs {runs} (--gpu-freq={self.requested}) "
            f"until the step ends; run each stage as a step with its own --gpu-freq"
        )


def _requested(value: str) -> str:
    """Returns the graphics clock in a `--gpu-freq`, such as `medium,memory=high,verbose`."""
    for part in value[:200].split(","):
        if part and "=" not in part and part != "verbose":
            return part
    return ""


def _clock_mhz(requested: str, clocks: list[int]) -> int:
    """Returns the clock that Slurm sets: words stand for places in the list, numbers are rounded up to one on offer."""
    if not clocks:
        return int(requested) if requested.isdecimal() else 0
    places = {"high": 0, "highm1": min(1, len(clocks) - 1), "medium": (len(clocks) - 1) // 2, "low": -1}
    if requested in places:
        return clocks[places[requested]]
    if requested.isdecimal():
        return next((mhz for mhz in reversed(clocks) if mhz >= int(requested)), clocks[0])
    return 0
