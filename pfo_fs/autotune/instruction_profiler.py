"""Profiles every instruction at the clocks worth knowing, during the training itself."""

from __future__ import annotations

from collections.abc import Sequence

from pfo_fs.autotune.beliefs import Beliefs
from pfo_fs.autotune.job_layout import JobLayout
from pfo_fs.autotune.profile_exchange import profile_csv
from pfo_fs.autotune.profile_sweep import ProfileSweep
from pfo_fs.errors import PlanError
from pfo_fs.models import JobInfo, RankInfo
from pfo_fs.scheduler.base import FrequencyScheduler, ScheduleGenerator, ScheduleRequest
from pfo_fs.settings import PFOSettings


class InstructionProfiler(FrequencyScheduler):
    """Measures time and power of every instruction from the highest clock down, then leaves the clocks alone.

    The first measuring window runs at default clocks, to warm up and to learn the order of instructions; the second at
    the highest. Then windows follow in which each stage runs through several clocks per iteration, coarse steps first,
    until its curves are known within `tolerance`.

    Args:
        job_info: The job.
        rank_infos: All its ranks, in any order.
        pfo_settings: Settings of the scheduling side.
        tolerance: Relative error of time and power that is good enough.
        max_windows: The largest number of windows.
    """

    def __init__(
        self,
        job_info: JobInfo,
        rank_infos: Sequence[RankInfo],
        pfo_settings: PFOSettings,
        tolerance: float = 0.003,
        max_windows: int = 64,
    ) -> None:
        super().__init__(job_info, rank_infos, pfo_settings)
        self._beliefs = Beliefs(JobLayout(job_info, self.rank_infos, lambda: self.orders))
        self._sweep = ProfileSweep(self._beliefs, tolerance, max_windows)

    @classmethod
    def check_args(cls, **args: object) -> None:
        """Raises PlanError for invalid arguments."""
        check_sweep_args(**args)

    def _run(self) -> ScheduleGenerator:
        problem = yield from self._sweep.run()
        done = f"profiled in {self._sweep.windows} windows; clocks are left alone"
        yield ScheduleRequest([], "run", problem or done, converged=not problem)

    def export_profile(self) -> str:
        """Returns everything measured, as a profile CSV: the columns of Zeus's, then the errors."""
        return profile_csv(self._beliefs.samples)


def check_sweep_args(tolerance: object = 0.003, max_windows: object = 64, **_: object) -> None:
    """Checks the arguments of a sweep.

    Raises:
        PlanError: One of them is invalid.
    """
    if not isinstance(tolerance, (int, float)) or not 0 < tolerance < 1:
        raise PlanError(f"tolerance is {tolerance!r}; give a relative error such as 0.003")
    if not isinstance(max_windows, int) or max_windows < 1:
        raise PlanError(f"max_windows is {max_windows!r}; give a number of measuring windows, such as 64")
