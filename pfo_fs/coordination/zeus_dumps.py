"""Zeus's dumps of one job's ranks, schedules and results, if the settings request them."""

from __future__ import annotations

from collections.abc import Sequence

from pfo_fs.models import FrequencySchedule, ProfilingResult, RankInfo
from pfo_fs.settings import PFOSettings
from pfo_fs.store import zeus_dump


class Dumps:
    """Writes dumps of one job; does nothing unless `dump_data` is set.

    Args:
        settings: Whether to dump, and where to.
        job_id: The job, which gets a folder of its own.
    """

    def __init__(self, settings: PFOSettings, job_id: str) -> None:
        self._folder = settings.dump_dir / job_id if settings.dump_data else None

    def save_ranks(self, infos: Sequence[RankInfo]) -> None:
        """Writes the numbers and clocks of all ranks."""
        if self._folder is not None:
            zeus_dump.save_ranks(infos, self._folder)

    def save_schedule(self, schedules: Sequence[FrequencySchedule], number: int) -> None:
        """Writes schedule `number`."""
        if self._folder is not None:
            zeus_dump.save_sched(schedules, self._folder, number)

    def save_results(self, results: Sequence[ProfilingResult], number: int) -> None:
        """Writes what was measured under schedule `number`."""
        if self._folder is not None:
            zeus_dump.save_prof(results, self._folder, number)
