"""Profiles that are kept for later jobs that train the same model on the same kind of GPUs."""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pfo_fs.errors import PlanError, StoreError
from pfo_fs.models import InstructionOrder, safe_name
from pfo_fs.store import JobFolder, bodies, layout

_MOST_KEYS, _MOST_KEYS_ALIKE = 64, 8
"""At most this many kinds of jobs are looked at, and searched, for a profile of another size."""
_SEARCH_S = 3.0
"""After this time, a job begins with what was found; the folder holds files of many jobs and users."""
_MOST_CHECKED = 8
"""At most this many profiles are checked; each may take some tenths of a second."""

Check = Callable[[str, str], None]
"""Raises PlanError if a policy cannot use a profile, given as its CSV and the job that measured it."""

log = logging.getLogger(__name__)


@dataclass
class ProfileCache:
    """One job's view of `profiles/`.

    A job matches another one if it trains the same model (`model_key`, else its metadata) with the same degrees and the
    same instructions in the same order on every stage, on the same kinds of GPUs, with the same software. The
    scheduler then compares the profile with the job's own first measurements. If no job matches, the profile of a job
    of another size on the same kinds of GPUs is given; the scheduler then finds that the times differ.
    """

    folder: JobFolder
    monotonic: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
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
        return self.folder.profiles.path(self._key) if self._kept else ""

    def known(
        self,
        job: bodies.JobBody,
        orders: Mapping[int, InstructionOrder | None],
        gpu_names: Mapping[int, str],
        check: Check = lambda csv, source: None,
    ) -> bodies.CachedProfileBody | None:
        """Returns the largest profile of an earlier job; after a restart of this job's coordinator, the same one.

        Other users can write these files. One that cannot be used is left out and named in the log.

        Args:
            check: Whether the policy can use a profile.
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
        known = self.folder.read_cached_profile()
        self._kept = self.folder.profiles.read_own(self._key)
        if known is None:
            until = self.monotonic() + _SEARCH_S
            best, csv = self._best(self._key, check, until) or self._of_other_sizes(about, check, until) or ("", "")
            known = self.folder.claim_cached_profile(bodies.CachedProfileBody(source=best, csv=csv))
        self._consulted = True  # last: if something above fails, the next call asks again
        return known if known.csv else None

    def _best(self, key: str, check: Check, until: float) -> tuple[str, str] | None:
        """Returns the job and the CSV of the largest profile of a kind of jobs that can be used; None if there is none.

        Args:
            key: The kind of jobs.
            check: Whether the policy can use a profile.
            until: No further profile is checked after this monotonic time, in s.
        """
        found = self.folder.profiles.read_others(key)
        largest = sorted(found, key=lambda job_id: (_rows(found[job_id]), job_id), reverse=True)
        for job_id in largest[:_MOST_CHECKED]:
            if self.monotonic() > until:
                break
            try:
                if not _rows(found[job_id]):
                    raise PlanError(f"the profile of job {job_id} holds no measurements")
                check(found[job_id], job_id)
            except PlanError as error:
                path = layout.profile(key, job_id)
                log.warning("job %s: %s is left out: %s", self.folder.job_id, path, error)
                continue
            return job_id, found[job_id]
        return None

    def _of_other_sizes(self, about: Mapping[str, object], check: Check, until: float) -> tuple[str, str] | None:
        """Does the same for jobs with other stages or micro-batches, if possible of the same model, on equal GPUs."""
        alike: list[tuple[bool, str]] = []
        same_name = self._key.rpartition("-")[0]
        keys = sorted(self.folder.profiles.all_keys(), key=lambda key: (key.rpartition("-")[0] != same_name, key))
        for key in keys[:_MOST_KEYS]:
            if self.monotonic() > until:
                break
            there = self.folder.profiles.read_about(key)
            if key != self._key and all(there.get(name) == about[name] for name in ("gpus", "versions")):
                alike.append((there.get("model") == about["model"], key))
        for _, key in sorted(alike, reverse=True)[:_MOST_KEYS_ALIKE]:
            best = self._best(key, check, until)
            if best is not None:
                return best
        return None

    def keep(self, csv: str, *, measuring: bool = False) -> None:
        """Publishes this job's profile, if it is new; if the directory cannot be written, the job goes on.

        Args:
            measuring: Whether the measurement is not finished.
        """
        if not self._key or csv == self._kept or not _rows(csv):
            return
        if measuring and _rows(csv) < _rows(self._kept):
            return  # a new measurement that is not complete yet
        try:
            self.folder.profiles.write(self._key, csv, self._about)
            self._kept = csv
        except StoreError as error:
            log.warning("job %s: its profile cannot be kept for later jobs: %s", self.folder.job_id, error.args[-1])


def _rows(csv: str) -> int:
    """Returns the number of lines that look like measurements."""
    return sum(line.count(",") >= 4 for line in csv.splitlines()[1:])
