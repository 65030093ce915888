"""Reads what the ranks of a job measured under its schedules."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import overload

from pydantic import TypeAdapter

from pfo_fs.coordination.rank_registry import RankRegistry
from pfo_fs.errors import RecordError
from pfo_fs.models import ProfilingResult
from pfo_fs.store import JobFolder, bodies

log = logging.getLogger(__name__)

_MOST_RESULT_BYTES = 64 << 20
"""Results of one schedule; of more, those of the pipelines with the lowest numbers are used."""
_LIST = TypeAdapter(list[ProfilingResult])


class StoredResults(Sequence[ProfilingResult]):
    """The results of `ranks`, stored as JSON, a small part of the memory; they are read where they are used first."""

    def __init__(self, stored: Iterable[bytes] = (), ranks: Iterable[int] = ()) -> None:
        self._stored = list(stored)
        self._ranks = frozenset(ranks)
        self._read: list[ProfilingResult] | None = None

    def __getstate__(self) -> dict[str, object]:
        return {**vars(self), "_read": None}

    def __len__(self) -> int:
        return len(self._results())

    @overload
    def __getitem__(self, at: int) -> ProfilingResult: ...

    @overload
    def __getitem__(self, at: slice) -> list[ProfilingResult]: ...

    def __getitem__(self, at: int | slice) -> ProfilingResult | list[ProfilingResult]:
        return self._results()[at]

    def _results(self) -> list[ProfilingResult]:
        if self._read is None:
            results = (result for text in self._stored for result in _LIST.validate_json(text))
            self._read = sorted(
                (result for result in results if result.rank in self._ranks), key=lambda result: result.rank
            )
        return self._read


@dataclass
class Results:
    """Reads the results of one job, each file once: as soon as it is there, so that the last ones are read at once."""

    folder: JobFolder
    ranks: RankRegistry

    def __post_init__(self) -> None:
        self._number = -1  # of the schedule whose results have been read:
        self._names: set[int] = set()
        self._late: dict[int, bool] = {}  # the ranks that have a result, and whether it was measured late
        self._stored: dict[int, bytes] = {}  # by the name of the file
        self._in_file: dict[int, list[int]] = {}  # the ranks whose results these are

    def missing(self, number: int) -> list[int]:
        """Returns the ranks without a result under schedule `number`; one that cannot be read counts as a result."""
        self._read_new(number)
        return sorted(self.ranks.by_rank.keys() - self._late.keys() - self._names)

    def read(self, number: int) -> StoredResults:
        """Returns the results under schedule `number`, by rank; what cannot be read is left out.

        If every stage has results in time, late ones are left out too.
        """
        self._read_new(number)
        by_rank = self.ranks.by_rank
        found = {rank for name in self._stored for rank in self._in_file[name]} & by_rank.keys()
        in_time = {rank for rank in found if not self._late[rank]}
        stages = {info.pp_rank for info in by_rank.values()}
        if {by_rank[rank].pp_rank for rank in in_time} == stages:
            found = in_time
        return StoredResults(self._stored.values(), found)

    def forget(self) -> None:
        """Frees the memory of results that were used."""
        self._number, self._names, self._late, self._stored, self._in_file = -1, set(), {}, {}, {}

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
                self._names.discard(name)  # it is listed, but not there: a listing is old
                continue
            wanted = self.ranks.by_rank.keys() - self._late.keys()
            new = {body.result.rank: body for body in reversed(found) if body.result.rank in wanted}
            self._late.update((rank, body.late) for rank, body in new.items())
            self._in_file[name] = list(new)
            self._stored[name] = _LIST.dump_json([body.result for body in new.values()])
            self._bound()

    def _bound(self) -> None:
        """Drops results of the pipelines with the highest numbers, so that no job takes all memory."""
        while sum(map(len, self._stored.values())) > _MOST_RESULT_BYTES:
            last = max(self._stored, key=self._place)
            log.warning("job %s: results %d are left out: there are too many bytes", self.folder.job_id, last)
            del self._stored[last]

    def _place(self, name: int) -> tuple[int, int, int]:
        info = self.ranks.by_rank.get(name)
        return (info.dp_rank, info.tp_rank, name) if info is not None else (1 << 30, 0, name)
