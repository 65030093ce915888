"""Reads what the ranks of a job measured under its schedules."""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from heapq import heappop, heappush
from typing import overload

from pfo_fs.coordination.rank_registry import NAMED, RankRegistry
from pfo_fs.errors import RecordError
from pfo_fs.models import ProfilingResult
from pfo_fs.schedule_yaml.problems import name_ranks
from pfo_fs.store import JobFolder, bodies

log = logging.getLogger(__name__)

_MOST_RESULT_BYTES = 64 << 20
"""At most this many bytes of a schedule's results are used; of more, those of the pipelines with the lowest numbers."""


class StoredResults(Sequence[ProfilingResult]):
    """Results that are stored as JSON, which takes little memory; they are parsed when they are used first."""

    def __init__(self, stored: Iterable[bytes] = ()) -> None:
        self._stored = list(stored)

    def __getstate__(self) -> dict[str, object]:
        return {"_stored": self._stored}

    def __len__(self) -> int:
        return len(self._stored)

    @overload
    def __getitem__(self, at: int) -> ProfilingResult: ...

    @overload
    def __getitem__(self, at: slice) -> list[ProfilingResult]: ...

    def __getitem__(self, at: int | slice) -> ProfilingResult | list[ProfilingResult]:
        return self._results[at]

    @cached_property
    def _results(self) -> list[ProfilingResult]:
        return [ProfilingResult.model_validate_json(text) for text in self._stored]


@dataclass
class Results:
    """Reads the results of one job. Each file is read once, as soon as it is there, so that in the end few are left."""

    folder: JobFolder
    ranks: RankRegistry

    def __post_init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Frees the memory of results that were used."""
        self._number = -1  # of the schedule whose results have been read
        self._names: set[int] = set()  # the files that have been read
        self._late: dict[int, bool] = {}  # the ranks that have a result, and whether it was measured late
        self._stored: dict[int, bytes] = {}  # by rank
        self._bytes = 0
        self._last_first: list[tuple[int, int, int]] = []  # the ranks of `_stored`, a heap

    def missing(self, number: int) -> list[int]:
        """Returns the ranks without a result under schedule `number`; a file that cannot be read counts as a result."""
        self._read_new(number)
        return sorted(self.ranks.by_rank.keys() - self._late.keys() - self._names)

    def read(self, number: int) -> StoredResults:
        """Returns the results under schedule `number`, by rank; what cannot be read is left out.

        If every stage has results in time, late results are left out, too.
        """
        self._read_new(number)
        by_rank = self.ranks.by_rank
        in_time = [rank for rank in self._stored if not self._late[rank]]
        all_stages = {by_rank[rank].pp_rank for rank in in_time} == {info.pp_rank for info in by_rank.values()}
        return StoredResults(self._stored[rank] for rank in sorted(in_time if all_stages else self._stored))

    def _read_new(self, number: int) -> None:
        if number != self._number:
            self.forget()
            self._number = number
        for name in self.folder.numbers(bodies.ResultsBody, number=number):
            if name in self._names:
                continue
            self._names.add(name)
            try:
                found = self.folder.read_results(number, name)
            except RecordError as error:
                log.warning("job %s: a result is left out: %s", self.folder.job_id, error)
                continue
            if found is None:
                self._names.discard(name)  # it is listed, but not there: the listing is old
            for body in found or ():
                self._store(body)
            self._bound()

    def _store(self, body: bodies.ResultBody) -> None:
        rank = body.result.rank
        info = self.ranks.by_rank.get(rank)
        if info is not None and rank not in self._late:
            self._late[rank], self._stored[rank] = body.late, body.result.model_dump_json().encode()
            self._bytes += len(self._stored[rank])
            heappush(self._last_first, (-info.dp_rank, -info.tp_rank, -rank))

    def _bound(self) -> None:
        """Drops results of the pipelines with the highest numbers, so that no job takes all memory."""
        dropped = []
        while self._bytes > _MOST_RESULT_BYTES:
            dropped.append(-heappop(self._last_first)[2])
            self._bytes -= len(self._stored.pop(dropped[-1]))
        if dropped:
            text = "job %s: there are too many bytes of results; left out: %s"
            log.warning(text, self.folder.job_id, name_ranks(sorted(dropped), NAMED))
