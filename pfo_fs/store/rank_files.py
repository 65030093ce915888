"""What the ranks of a job register and measure: each file holds the records of ranks of one host.

With one file for each rank, a job of many ranks costs the file server several times as many operations.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass

from pfo_fs.errors import RecordError
from pfo_fs.store import bodies as b
from pfo_fs.store import layout
from pfo_fs.store.locks import courtesy_lock
from pfo_fs.store.records import RecordFolder


@dataclass
class RankFiles(RecordFolder):
    """Registrations and results in a job's folder."""

    # ---- registrations

    def register_ranks(self, ranks: Sequence[b.RankBody]) -> dict[int, str]:
        """Registers ranks of one host, at most 32, in one file that has a name for each of them.

        Returns for each rank whose name another process has taken which process that is, or that its file is not valid.

        Raises:
            StoreError: The file cannot be written; some ranks may be registered, and may be registered again.
        """
        by_name = {f"{body.rank_info.rank}.json": body for body in ranks}
        # One lock for each name, because ranks may register in other groups after a helper has died.
        locks = [f"{self.path}/{layout.rank_lock(rank)}" for rank in sorted(body.rank_info.rank for body in ranks)]
        data = self.encoded(b.RanksBody(ranks=list(ranks)))
        taken = {}
        with courtesy_lock(self.files, *locks):
            for name in self.files.claim_each(f"{self.path}/{layout.RANKS}", list(by_name), data):
                rank, nonce = by_name[name].rank_info.rank, by_name[name].nonce
                try:
                    other = self.read_rank(rank)
                except RecordError as error:
                    taken[rank] = str(error)
                    continue
                if other is None or other.nonce != nonce:
                    who = f"process {other.pid} on {other.host}" if other else "another process"
                    taken[rank] = f"rank {rank} of job {self.location.name} is registered already, by {who}"
        return taken

    def read_ranks(self, name: int) -> list[b.RankBody] | None:
        """Reads `ranks/<name>.json`: rank `name`, and the ranks that registered with it.

        A rank in it counts only if it has a name in `ranks/` too: without one, another process may have that rank, or
        the helper died before the rank was registered.
        """
        body = self.read(b.RanksBody, name=name)
        if body is not None and all(rank.rank_info.rank != name for rank in body.ranks):
            path = self.files.root / self.path_of(b.RanksBody, name=name)
            raise RecordError(f"{path}: it is of rank {body.ranks[0].rank_info.rank}")
        return None if body is None else body.ranks

    def read_rank(self, rank: int) -> b.RankBody | None:
        """Reads what a rank wrote when it registered."""
        return next((body for body in self.read_ranks(rank) or () if body.rank_info.rank == rank), None)

    def each_rank(
        self, known: Container[int] = (), read: Callable[[int], list[b.RankBody] | None] | None = None
    ) -> Iterator[b.RankBody]:
        """Reads all ranks that have registered, except those in `known`; each file once.

        `read` is called in place of `read_ranks`, to handle the error of a file that is not valid.
        """
        names = dict.fromkeys(self.numbers(b.RanksBody))
        seen: set[int] = set()
        for name in names:
            if name in seen or name in known:
                continue
            for body in (read or self.read_ranks)(name) or ():
                rank = body.rank_info.rank
                if rank in names and rank not in seen and rank not in known:
                    seen.add(rank)
                    yield body

    # ---- results

    def write_results(self, number: int, results: Sequence[b.ResultBody]) -> None:
        """Writes what ranks of one host measured under schedule `number`, once: in one file, if it is not too large.

        A rank that has a result in an earlier file of that name keeps it.
        """
        self.files.make_folder(f"{self.path}/{layout.results(number)}")
        waiting = [sorted(results, key=lambda body: body.result.rank)]
        while waiting:
            part = waiting.pop()
            data = self.encoded(b.ResultsBody(results=part))
            if len(data) > layout.PLAN_LIMIT and len(part) > 1:
                waiting += [part[: len(part) // 2], part[len(part) // 2 :]]
                continue
            name = part[0].result.rank
            if not self.files.claim(self.path_of(b.ResultsBody, number=number, name=name), data):
                there = self._ranks_in(number, name)
                rest = [body for body in part if body.result.rank not in there]
                waiting += [rest] if rest else []

    def _ranks_in(self, number: int, name: int) -> set[int]:
        """Returns the ranks that have a result in a file; rank `name` has its own, even if it cannot be read."""
        try:
            return {name, *(body.result.rank for body in self.read_results(number, name) or ())}
        except RecordError:
            return {name}

    def read_results(self, number: int, name: int) -> list[b.ResultBody] | None:
        """Reads `prof/<number>/<name>.json`: the results of rank `name`, and of other ranks of its host."""
        body = self.read(b.ResultsBody, number=number, name=name)
        if body is not None and all(measured.result.rank != name for measured in body.results):
            path = self.files.root / self.path_of(b.ResultsBody, number=number, name=name)
            raise RecordError(f"{path}: it is not that rank's result")
        return None if body is None else body.results
