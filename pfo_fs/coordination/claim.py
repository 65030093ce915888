"""Decides which coordinator schedules a job: the first to claim it, in a daemon or at the job's own rank 0."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Literal

from pfo_fs.coordination.site_policy import SitePolicy
from pfo_fs.store import JobFolder, bodies, layout

Kind = Literal["daemon", "local"]


class JobClaim:
    """The claim of one coordinator to one job.

    Args:
        folder: The job.
        kind: `daemon`, or `local` for rank 0 of the job itself.
        site: Returns what the site allows.
    """

    def __init__(self, folder: JobFolder, kind: Kind, site: Callable[[], SitePolicy] = SitePolicy) -> None:
        self._folder = folder
        self._kind = kind
        self._site = site
        self._mine: bool | None = None

    @property
    def settled(self) -> bool:
        """Whether it is known which coordinator schedules the job."""
        return self._mine is not None

    @property
    def is_mine(self) -> bool:
        """Whether this coordinator schedules the job; also True until that is known."""
        return self._mine is not False

    @property
    def is_held(self) -> bool:
        """Whether this coordinator has claimed the job."""
        return self._mine is True

    def settle(self, job: bodies.JobBody, names: set[str]) -> bool:
        """Claims the job if it is free and this kind of coordinator may; returns whether this one schedules the job.

        Args:
            job: The content of `job.json`.
            names: The names in the job's folder now.
        """
        if self._mine is None:
            claim = self._folder.read_coordinator() if layout.COORDINATOR in names else None
            if claim is None and self._may_claim(job):
                claim = self._folder.claim_coordinator(bodies.ClaimBody(kind=self._kind, nonce=secrets.token_hex(8)))
            self._mine = claim is not None and claim.kind == self._kind
        return self._mine

    def _may_claim(self, job: bodies.JobBody) -> bool:
        if self._site().daemon_only:
            return self._kind == "daemon"
        return job.coordination in ("auto", self._kind)
