"""Profiles that are kept for later jobs that train the same model on the same kind of GPUs."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping

from pfo_fs.errors import StoreError
from pfo_fs.models import InstructionOrder, safe_name
from pfo_fs.store import JobFolder, bodies

_MOST_KEYS_ALIKE = 8
"""At most this many kinds of jobs are searched for a profile of another size."""

log = logging.getLogger(__name__)


class ProfileCache:
    """One job's view of `profiles/`.

    A job matches another one if it trains the same model (`model_key`, else its metadata) with the same degrees and the
    same instructions in the same order on every stage, on the same kinds of GPUs, with the same software. The
    scheduler then compares the profile with the job's own first measurements. If no job matches, the profile of a job
    of another size on the same kinds of GPUs is given; the scheduler then finds that the times differ.

    Args:
        folder: The job.
    """

    def __init__(self, folder: JobFolder) -> None:
        self._folder = folder
        self._key = ""
        self._about = ""
        self._kept = ""
        self._consulted = False

    @property
    def consulted(self) -> bool:
        """Whether `known` has found an answer."""
        return self._consulted

    @property
    def path(self) -> str:
        """The path of this job's own profile, below the shared directory; empty while there is none."""
        return self._folder.profiles.path(self._key) if self._kept else ""

    def known(
        self, job: bodies.JobBody, orders: Mapping[int, InstructionOrder | None], gpu_names: Mapping[int, str]
    ) -> bodies.CachedProfileBody | None:
        """Returns the largest profile of an earlier job; after a restart of this job's coordinator, the same one.

        Args:
            job: This job.
            orders: The instructions of each rank.
            gpu_names: The GPU of each rank.
        """
        if not orders or not all(orders.values()):
            return None
        about = {
            "model": job.model_key or job.job_info.job_metadata or "",
            "pp_degree": job.job_info.pp_degree,
            "tp_degree": job.job_info.tp_degree,
            "orders": sorted({json.dumps(order) for order in orders.values()}),
            "gpus": sorted(set(gpu_names.values())),
            "versions": {name: text for name, text in sorted(job.versions.items()) if name not in ("pfo_fs", "python")},
        }
        digest = hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:16]
        self._key = f"{safe_name(str(about['model'])) or 'unnamed'}-{digest}"
        self._about = json.dumps(about, indent=1)[:200_000]
        known = self._folder.read_cached_profile()
        self._kept = self._folder.profiles.read_own(self._key)
        if known is None:
            found = self._folder.profiles.read_others(self._key)
            for job_id in [job_id for job_id, csv in found.items() if not _rows(csv)]:
                log.warning("job %s: the profile of job %s holds no measurements", self._folder.job_id, job_id)
                del found[job_id]
            if not found:
                found = self._of_other_sizes(about)
            best = max(found, key=lambda job_id: (_rows(found[job_id]), job_id), default="")
            known = self._folder.claim_cached_profile(bodies.CachedProfileBody(source=best, csv=found.get(best, "")))
        self._consulted = True  # last: if something above fails, the next call asks again
        return known if known.csv else None

    def _of_other_sizes(self, about: Mapping[str, object]) -> dict[str, str]:
        """Returns profiles of jobs with other stages or micro-batches, if possible of the same model, on equal GPUs."""
        alike: list[tuple[bool, str]] = []
        for key in self._folder.profiles.all_keys():
            there = self._folder.profiles.read_about(key)
            if key != self._key and all(there.get(name) == about[name] for name in ("gpus", "versions")):
                alike.append((there.get("model") == about["model"], key))
        for _, key in sorted(alike, reverse=True)[:_MOST_KEYS_ALIKE]:
            found = {job_id: csv for job_id, csv in self._folder.profiles.read_others(key).items() if _rows(csv)}
            if found:
                return found
        return {}

    def keep(self, csv: str, *, measuring: bool = False) -> None:
        """Publishes this job's profile, if it is new; if the directory cannot be written, the job goes on.

        Args:
            csv: The profile.
            measuring: Whether the measurement is not finished.
        """
        if not self._key or csv == self._kept or not _rows(csv):
            return
        if measuring and _rows(csv) < _rows(self._kept):
            return  # a new measurement that is not complete yet
        try:
            self._folder.profiles.write(self._key, csv, self._about)
            self._kept = csv
        except StoreError as error:
            log.warning("job %s: its profile cannot be kept for later jobs: %s", self._folder.job_id, error.args[-1])


def _rows(csv: str) -> int:
    """Returns the number of lines that look like measurements."""
    return sum(line.count(",") >= 4 for line in csv.splitlines()[1:])
