"""Reads what the ranks of a job measured under its schedules."""

from __future__ import annotations

import logging

from pfo_fs.coordination.rank_registry import RankRegistry
from pfo_fs.errors import RecordError
from pfo_fs.models import ProfilingResult
from pfo_fs.store import JobFolder, bodies

log = logging.getLogger(__name__)


class Results:
    """Reads the results of one job, each file once: as soon as it is there, so that the last ones are read at once.

    Args:
        folder: The job.
        ranks: The job's ranks.
    """

    def __init__(self, folder: JobFolder, ranks: RankRegistry) -> None:
        self._folder = folder
        self._ranks = ranks
        self._number = -1  # of the schedule whose results have been read:
        self._names: set[int] = set()
        self._bodies: dict[int, bodies.ResultBody] = {}

    def missing(self, number: int) -> list[int]:
        """Returns the ranks without a result under schedule `number`; one that cannot be read counts as a result."""
        self._read_new(number)
        return sorted(self._ranks.by_rank.keys() - self._bodies.keys() - self._names)

    def read(self, number: int) -> list[ProfilingResult]:
        """Returns the results, by rank. If every stage has results in time, late ones are left out.

        Args:
            number: A schedule with complete results; a result that cannot be read is left out.
        """
        self._read_new(number)
        by_rank = self._ranks.by_rank
        found = [self._bodies[rank] for rank in sorted(self._bodies.keys() & by_rank.keys())]
        in_time = [body for body in found if not body.late]
        stages = {info.pp_rank for info in by_rank.values()}
        if {by_rank[body.result.rank].pp_rank for body in in_time} == stages:
            found = in_time
        return [body.result for body in found]

    def forget(self) -> None:
        """Frees the memory of results that were used."""
        self._number, self._names, self._bodies = -1, set(), {}

    def _read_new(self, number: int) -> None:
        if number != self._number:
            self.forget()
            self._number = number
        for name in self._folder.result_names(number):
            if name in self._names:
                continue
            self._names.add(name)
            try:
                found = self._folder.read_results(number, name)
            except RecordError as error:
                log.warning("job %s: a result is left out: %s", self._folder.job_id, error)
                continue
            if found is None:
                self._names.discard(name)  # it is listed, but not there: a listing is old
            for body in found or ():
                self._bodies.setdefault(body.result.rank, body)
