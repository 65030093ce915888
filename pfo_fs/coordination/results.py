"""Reads what the ranks of a job measured under its schedules."""

from __future__ import annotations

import logging

from pfo_fs.coordination.rank_registry import RankRegistry
from pfo_fs.errors import RecordError
from pfo_fs.models import ProfilingResult
from pfo_fs.store import JobFolder, bodies

log = logging.getLogger(__name__)


class Results:
    """Reads the results of one job.

    Args:
        folder: The job.
        ranks: The job's ranks.
    """

    def __init__(self, folder: JobFolder, ranks: RankRegistry) -> None:
        self._folder = folder
        self._ranks = ranks

    def missing(self, number: int) -> list[int]:
        """Returns the ranks without a result under schedule `number`."""
        return sorted(set(self._ranks.by_rank) - set(self._folder.ranks_with_result(number)))

    def read(self, number: int) -> list[ProfilingResult]:
        """Returns the results, by rank. If every stage has results in time, late ones are left out.

        Args:
            number: A schedule with complete results; a result that cannot be read is left out.
        """
        found: list[bodies.ResultBody] = []
        for rank in sorted(self._ranks.by_rank):
            try:
                body = self._folder.read_result(number, rank)
            except RecordError as error:
                log.warning("job %s: a result is left out: %s", self._folder.job_id, error)
                continue
            if body is None or body.result.rank != rank:
                log.warning("job %s: prof/%d/%d.json is not that rank's result", self._folder.job_id, number, rank)
                continue
            found.append(body)
        in_time = [body for body in found if not body.late]
        stages = {info.pp_rank for info in self._ranks.by_rank.values()}
        if {self._ranks.by_rank[body.result.rank].pp_rank for body in in_time} == stages:
            found = in_time
        return [body.result for body in found]
