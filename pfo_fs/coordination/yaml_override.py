"""A user's `schedule.yaml`: when it is complete, what it requests, and what `schedule.status.yaml` says of it."""

import errno
import hashlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TypeAlias

import yaml

from pfo_fs.errors import PlanError, StoreError
from pfo_fs.models import FrequencySchedule, PlanInputs
from pfo_fs.schedule_yaml import OrderUnknown, ScheduleDocument, ScheduleProblems, parse_schedule_yaml
from pfo_fs.store import JobFolder, layout
from pfo_fs.turns import Term

log = logging.getLogger(__name__)

SETTLE_S = 1.0
"""The file is used once it has stayed the same for this time, in s: editors write in pieces."""
_REFUSED = (errno.EFBIG, errno.EINVAL, errno.EPERM, errno.ELOOP, errno.EACCES, errno.EISDIR)
"""Too large, not a plain file, foreign owner, link, no permission to read it: waiting does not change these."""
GONE_AFTER_LISTINGS = 3
GONE_AFTER_S = 3.0
"""The file counts as removed after this many listings without it over this time, in s: one listing may be stale."""

Resolve = Callable[[ScheduleDocument], list[FrequencySchedule]]
Problem: TypeAlias = tuple[int | None, str]


@dataclass
class YamlOverride:
    """Follows one job's `schedule.yaml`.

    Args:
        accepted_sha256: After a restart, the hash of the YAML that is in force already; empty if none is.
        published_sha256: After a restart, the hash of the YAML that was in force last.
        plan_inputs: After a restart, the plan inputs of the newest schedule.

    Attributes:
        target: The target that the file requests; None if it requests none.
        straggler: The straggler that the file announces; None if it announces none.
        term: Turns and end of the accepted file; `after` is left open.
    """

    folder: JobFolder
    pipelines: int
    accepted_sha256: str = ""
    published_sha256: str = ""
    plan_inputs: PlanInputs | None = None

    def __post_init__(self) -> None:
        self.target = self.plan_inputs.target if self.plan_inputs else None
        self.straggler = self.plan_inputs.straggler if self.plan_inputs else None
        self.schedules: list[FrequencySchedule] | None = None
        self.term = Term()
        self.problem = ""
        self._before = ""  # text for the status: what was accepted before this file
        self._content: bytes | None = None  # as it was read last; None before that, and once the file is gone
        self._sha256 = ""  # the hash of `_content`
        self._unchanged_since = 0.0
        self._absent_since: float | None = None  # since when listings lack the file
        self._absences = 0
        self._is_refused = False
        self._decided = ""  # the hash of the content that has been accepted or rejected
        self._written = ""  # the status that was written last

    @property
    def active(self) -> bool:
        """Whether a user's schedule is in force, or about to be."""
        return bool(self.accepted_sha256)

    @property
    def unsettled(self) -> bool:
        """Whether something is still to be decided, so that the next poll should be soon."""
        return self._absent_since is not None or (self._content is not None and self._decided != self._sha256)

    def poll(self, present: bool, now: float, resolve: Resolve, first_step: int) -> None:
        """Reads the file, and accepts, rejects or removes it.

        Args:
            present: Whether a listing of the job's folder has the file. The listing must also have `job.json`: without
                it, the folder is not seen for a moment, and the file does not count as missing.
            resolve: Turns a well-formed document into schedules for this job's ranks, or raises `PlanError`.
            first_step: The first step that can follow a schedule that is published now.
        """
        if not present:
            has_effect = self.active or self.target is not None or self.straggler is not None or bool(self.problem)
            if has_effect or self._content is not None:
                self._absent_since = now if self._absent_since is None else self._absent_since
                self._absences += 1
                if self._absences >= GONE_AFTER_LISTINGS and now - self._absent_since >= GONE_AFTER_S:
                    log.info("job %s: schedule.yaml was removed; the scheduler decides again", self.folder.job_id)
                    self._content, self._absent_since, self._absences = None, None, 0
                    self.accepted_sha256 = self.problem = self._decided = self._before = ""
                    self.schedules = self.target = self.straggler = None
                    self._write_status("removed", "")
            return
        try:
            content = self.folder.read_file(layout.YAML)
        except StoreError as error:
            if error.errno in _REFUSED:
                self._is_refused, self._absent_since, self._absences = True, None, 0
                self.problem = str(error.args[-1])
                if error.errno == errno.EACCES:
                    self.problem += "; let the daemon's user read it (chmod a+r schedule.yaml)"
                self._write_status("rejected", "", [(None, self.problem)])
            return
        if content is None:
            return  # listed, but not there: an editor is replacing it
        if self._is_refused:  # it can be read again: the same content is decided anew, which ends the problem
            self._is_refused, self._decided = False, ""
        self._absent_since, self._absences = None, 0
        if content != self._content:
            self._content, self._unchanged_since = content, now
            self._sha256 = hashlib.sha256(content).hexdigest()
        elif now - self._unchanged_since >= SETTLE_S and self._decided != self._sha256:
            self._decide(content, resolve, first_step)

    def _decide(self, content: bytes, resolve: Resolve, first_step: int) -> None:
        """Accepts or rejects content that has stopped changing; waits while the instruction order is not known."""
        sha256 = self._sha256
        try:
            document = parse_schedule_yaml(content)
            document.check_straggler(self.pipelines)
            if sha256 != self.published_sha256:
                document.check_until(first_step)
            schedules = resolve(document) if document.has_clocks else None
        except OrderUnknown as error:
            self._write_status("waiting", sha256, [(error.line, str(error))])
            return
        except ScheduleProblems as error:
            self._reject([(problem.line, problem.reason) for problem in error.problems])
            return
        except PlanError as error:
            self._reject([(error.line, str(error))])
            return
        self._decided = sha256
        self.accepted_sha256 = sha256 if document.has_clocks else ""
        self.schedules, self.problem = schedules, ""
        self.term = Term(document.until or 0, turns=document.turns, by_hand=True)
        if not document.has_clocks:
            self._before = ""
        self.target, self.straggler = document.target, document.straggler
        self._write_status("accepted" if document.has_clocks else "accepted, the scheduler applies it", sha256)

    def _reject(self, problems: list[Problem]) -> None:
        self._decided = self._sha256
        line, reason = problems[0]
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        self.problem = (f"line {line}: {reason}" if line else reason) + more
        for line, reason in problems:
            log.warning("job %s: schedule.yaml%s: %s", self.folder.job_id, f" line {line}" if line else "", reason)
        self._write_status("rejected", self._sha256, problems)

    def report_published(self, number: int, start_step: int, *, in_force: bool) -> None:
        """Completes the status: the accepted YAML is schedule `number`; `in_force`: rank 0 follows it."""
        self.published_sha256 = self.accepted_sha256
        self._before = f"schedule {number}, which was accepted before"
        if self._decided == self.accepted_sha256:
            state = "in force" if in_force else "accepted, starts soon"
            self._write_status(state, self.accepted_sha256, published=(number, start_step))

    def end(self) -> None:
        """Leaves the clocks to the scheduler again: the accepted file was for steps that have passed."""
        if self._decided == self.accepted_sha256:
            self._write_status(f"ended at step {self.term.until}", self.accepted_sha256)
        self.accepted_sha256, self.schedules, self._before = "", None, ""

    def report_applied(self, number: int, start_step: int) -> None:
        """Completes the status: the scheduler has made schedule `number` for the target or the straggler."""
        asked_for = self.target is not None or self.straggler is not None
        if asked_for and self._sha256 and self._decided == self._sha256 and not self.problem:
            self._write_status("applied by the scheduler", self._sha256, published=(number, start_step))

    def _write_status(
        self, state: str, sha256: str, problems: Sequence[Problem] = (), published: tuple[int, int] | None = None
    ) -> None:
        """Writes the status of the file with this hash, if it has changed; logs errors of the shared directory."""
        document: dict[str, object] = {"state": state}
        if sha256:
            document["sha256_of_schedule_yaml"] = sha256
        if published:
            document["schedule_number"], document["from_step"] = published
        if problems:
            document["problems"] = [
                {"line": line, "reason": reason} if line else {"reason": reason} for line, reason in problems
            ]
            if state == "rejected":
                document["in_force_meanwhile"] = self._before or "the scheduler's own schedule"
        text = yaml.safe_dump(document, sort_keys=False, width=110, allow_unicode=True)
        if text == self._written:
            return
        stamp = datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")
        head = f"# Written by pfo-fs at {stamp}: the status of schedule.yaml. Edits here have no effect.\n"
        try:
            self.folder.write_file(layout.YAML_STATUS, (head + text).encode("utf-8", "replace"))
            self._written = text
        except StoreError as error:
            log.warning("job %s: schedule.status.yaml cannot be written: %s", self.folder.job_id, error.args[-1])
