"""One job's folder: what its ranks register and measure, and its other records and files."""

import errno
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass

from pfo_fs.errors import RecordError, StoreUnavailable
from pfo_fs.store import bodies as b
from pfo_fs.store import layout
from pfo_fs.store.locks import courtesy_lock
from pfo_fs.store.records import RecordFolder
from pfo_fs.store.schedule_files import ScheduleFiles


@dataclass
class RankFiles(RecordFolder):
    """Registrations and results in a job's folder: each file holds the records of ranks of one host.

    With one file for each rank, a job of many ranks costs the file server several times as many operations.
    """

    def register_ranks(self, ranks: Sequence[b.RankBody]) -> dict[int, str]:
        """Registers ranks of one host, at most 32, in one file that has a name for each of them.

        Returns a text for each rank whose name is taken: which process has it, or that the file there is not valid.

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
            raise RecordError(f"{path}: it is not of the rank in its name, but of rank {body.ranks[0].rank_info.rank}")
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

    def write_results(self, number: int, results: Sequence[b.ResultBody]) -> None:
        """Writes what ranks of one host measured under schedule `number`, once: in one file, if it is not too large.

        A rank that has a result in an earlier file of that name keeps that result.
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


_MOST_HOSTS_ASKED = 64
_MOST_SCHEDULES_CLEANED = 20
"""At most this many schedules are cleaned, the newest: only these can be half written, by a coordinator that died."""


@dataclass
class JobFolder(ScheduleFiles, RankFiles):
    """One job's folder: `read` and `write` for records, and methods for all else."""

    job_id: str = ""

    @property
    def is_archived(self) -> bool:
        """Whether the job has ended and was moved to the archive."""
        return self.path.startswith(f"{layout.ARCHIVE}/")

    def names(self) -> set[str]:
        """Returns the names in the job's folder now.

        Raises:
            StoreUnavailable: The folder itself cannot be seen now; its files may still exist.
        """
        found = self.files.names_if_there(self.path)
        if found is None:
            raise StoreUnavailable(
                errno.ENOENT, f"{self.location}: the job's folder is not there now; was it moved, or unmounted?"
            )
        return set(found)

    def read_job(self) -> b.JobBody | None:
        """Reads `job.json`; from then on only records of the same attempt are read."""
        self.attempt, known = None, self.attempt
        try:
            found = self._read(b.JobBody)
        finally:
            self.attempt = known
        if found is None:
            return None
        header, body = found
        if body.job_info.job_id != self.job_id and not self.is_archived:
            raise RecordError(f"{self.location / layout.JOB}: it is of job {body.job_info.job_id!r}")
        self.attempt = header.attempt
        return body

    def claim_coordinator(self, body: b.ClaimBody) -> b.ClaimBody:
        """Claims the job for a daemon or for its own rank 0; returns the claim that is valid."""
        return body if self.write(body) else self.read(b.ClaimBody) or body

    def read_file(self, name: str) -> bytes | None:
        """Reads a file that is no record; None if it is not there now."""
        return self.files.read(self.below(name), layout.FILES[name])

    def write_file(self, name: str, content: bytes) -> None:
        """Replaces a file that is no record, in one step."""
        self.files.publish(self.below(name), content)

    def remove_file(self, name: str) -> None:
        """Removes `check.json`, or `schedule.yaml`, if it is there."""
        self.files.remove(self.below(name))

    def last_sign_s(self) -> float:
        """Returns when the job's processes have written something last, by the file system's own clock.

        At most 64 hosts are looked at: one living host is enough.
        """
        hosts = self.numbers(b.ProgressBody)[:_MOST_HOSTS_ASKED]
        paths = [self.below(name) for name in (layout.JOB, *layout.OF_PROCESSES)]
        paths += [self.path_of(b.ProgressBody, name=host) for host in hosts]
        return max(map(self.files.changed_s, paths))

    def remove_stale_temporaries(self) -> int:
        """Removes what dead writers have left in the job's folders; returns how many files.

        Checks at most 1,000 files in each folder, and only the 20 newest schedules.
        """
        newest = self.schedule_numbers()[-_MOST_SCHEDULES_CLEANED:]
        folders = ["", *layout.JOB_FOLDERS, *map(layout.schedule, newest), *map(layout.results, newest)]
        return sum(self.files.remove_stale_temporaries(self.below(folder).rstrip("/")) for folder in folders)
