"""`schedule.status.yaml`: whether a user's `schedule.yaml` is applied, and why not."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import TypeAlias

import yaml

from pfo_fs.errors import StoreError
from pfo_fs.store import JobFolder

log = logging.getLogger(__name__)

Problem: TypeAlias = tuple[int | None, str]
"""The line, or None, and the reason."""


class YamlStatus:
    """Writes one job's `schedule.status.yaml` when it changes.

    Args:
        folder: The job.
    """

    def __init__(self, folder: JobFolder) -> None:
        self._folder = folder
        self._written = ""

    def write(
        self,
        state: str,
        sha256: str,
        problems: Sequence[Problem] = (),
        *,
        in_force_meanwhile: str = "",
        more: Mapping[str, int] | None = None,
    ) -> None:
        """Writes the status, unless it has not changed; an error of the directory is logged.

        Args:
            state: The state in words.
            sha256: The hash of the `schedule.yaml` that the status is about; empty for none.
            problems: What is wrong with that file.
            in_force_meanwhile: What the ranks follow in place of a rejected file; empty to leave it out.
            more: Further entries.
        """
        document: dict[str, object] = {"state": state}
        if sha256:
            document["sha256_of_schedule_yaml"] = sha256
        document.update(more or {})
        if problems:
            document["problems"] = [
                {"line": line, "reason": reason} if line else {"reason": reason} for line, reason in problems
            ]
        if in_force_meanwhile:
            document["in_force_meanwhile"] = in_force_meanwhile
        text = yaml.safe_dump(document, sort_keys=False, width=110, allow_unicode=True)
        if text == self._written:
            return
        stamp = datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")
        head = f"# Written by pfo-fs at {stamp}: the status of schedule.yaml. Edits here have no effect.\n"
        try:
            self._folder.write_yaml_status(head + text)
            self._written = text
        except StoreError as error:
            log.warning("job %s: schedule.status.yaml cannot be written: %s", self._folder.job_id, error.args[-1])
