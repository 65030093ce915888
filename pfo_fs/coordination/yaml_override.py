"""A person's `schedule.yaml`: when to believe it, what to say about it."""

from __future__ import annotations

import errno
import hashlib
import logging
from collections.abc import Callable
from datetime import datetime, timezone

import yaml

from pfo_fs.errors import PlanError, StoreError
from pfo_fs.models import FrequencySchedule, PlanInputs
from pfo_fs.schedule_yaml.parse import OrderUnknown, ScheduleDocument, ScheduleProblems, parse_schedule_yaml
from pfo_fs.store import JobFolder

log = logging.getLogger(__name__)

SETTLE_S = 1.0
"""A file must read the same twice, this far apart, before it is acted on: editors write in pieces."""
_REFUSED = (errno.EFBIG, errno.EINVAL, errno.EPERM, errno.ELOOP, errno.EACCES, errno.EISDIR)
"""Too large, no plain file, foreign owner, link, no right to read it: that will not mend itself."""
GONE_AFTER_LISTINGS = 3
GONE_AFTER_S = 3.0
"""A file is taken for removed after so many listings without it over so long: one listing may be stale."""

Resolve = Callable[[ScheduleDocument], list[FrequencySchedule]]


class YamlOverride:
    """Follows one job's `schedule.yaml`.

    Args:
        folder: The job.
        accepted_sha256: The YAML that is in force already, after a restart; empty if none is.
        pipelines: How many pipelines the job has.
        plan_inputs: What the newest schedule was made for, after a restart.

    Attributes:
        target: What the file asks the scheduler to plan for; None if it does not.
        straggler: What it tells the scheduler to expect.
    """

    def __init__(
        self, folder: JobFolder, pipelines: int, accepted_sha256: str = "", plan_inputs: PlanInputs | None = None
    ) -> None:
        self._folder = folder
        self._pipelines = pipelines
        self.accepted_sha256 = accepted_sha256
        self.target = plan_inputs.target if plan_inputs else None
        self.straggler = plan_inputs.straggler if plan_inputs else None
        self.schedules: list[FrequencySchedule] | None = None
        self.problem = ""
        self._in_force_meanwhile = ""
        self._content: bytes | None = None
        self._sha256 = ""
        self._unchanged_since = 0.0
        self._judged = ""
        self._absent_since: float | None = None
        self._absences = 0
        self._status = ""

    @property
    def active(self) -> bool:
        """Whether a person's schedule is in force, or about to be."""
        return bool(self.accepted_sha256)

    @property
    def unsettled(self) -> bool:
        """Whether something is still to be decided, so that it is worth looking again soon."""
        return self._absent_since is not None or (self._content is not None and self._judged != self._sha256)

    def look(self, present: bool, now: float, resolve: Resolve) -> None:
        """Looks at the file.

        Args:
            present: Whether the last listing of the job's folder shows it.
            now: Monotonic time in seconds.
            resolve: Turns a well-formed document into schedules for this job's ranks, or raises `PlanError`.
        """
        content: bytes | None = None
        if present:
            try:
                content = self._folder.read_yaml()
            except StoreError as error:
                if error.errno in _REFUSED:
                    self.problem = str(error.args[-1])
                    if error.errno == errno.EACCES:
                        self.problem += "; let the daemon's user read it (chmod a+r schedule.yaml)"
                    self._say("rejected", "", [(None, self.problem)])
                return
        if content is None:
            self._look_at_absence(now)
            return
        self._absent_since, self._absences = None, 0
        if content != self._content:
            self._content, self._unchanged_since = content, now
            self._sha256 = hashlib.sha256(content).hexdigest()
            return
        if self._judged == self._sha256 or now - self._unchanged_since < SETTLE_S:
            return
        self._judge(content, resolve)

    def _look_at_absence(self, now: float) -> None:
        if not self.active and self._content is None and self.target is None and self.straggler is None:
            return
        self._absent_since = now if self._absent_since is None else self._absent_since
        self._absences += 1
        if self._absences >= GONE_AFTER_LISTINGS and now - self._absent_since >= GONE_AFTER_S:
            log.info("job %s: schedule.yaml was removed; the scheduler has the wheel again", self._folder.job_id)
            self.accepted_sha256, self.schedules, self.problem = "", None, ""
            self.target = self.straggler = None
            self._content, self._judged = None, ""
            self._absent_since, self._absences = None, 0
            self._say("removed", "", [])

    def _judge(self, content: bytes, resolve: Resolve) -> None:
        try:
            document = parse_schedule_yaml(content)
            document.check_straggler(self._pipelines)
            schedules = resolve(document) if document.has_clocks else None
        except OrderUnknown as error:
            self._say("waiting", self._sha256, [(error.line, str(error))])
            return  # judged again at the next look
        except ScheduleProblems as error:
            problems: list[tuple[int | None, str]] = [(problem.line, problem.reason) for problem in error.problems]
        except PlanError as error:
            problems = [(error.line, str(error))]
        else:
            self._judged = self._sha256
            self.accepted_sha256 = self._sha256 if document.has_clocks else ""
            self.schedules, self.problem = schedules, ""
            self.target, self.straggler = document.target, document.straggler
            self._say("accepted" if document.has_clocks else "accepted, the scheduler heeds it", self._sha256, [])
            return
        self._judged = self._sha256
        self.problem = _first(problems)
        for line, reason in problems:
            log.warning("job %s: schedule.yaml%s: %s", self._folder.job_id, f" line {line}" if line else "", reason)
        self._say("rejected", self._sha256, problems)

    def say_published(self, number: int, start_step: int, *, in_force: bool) -> None:
        """Completes the status: the accepted YAML has become schedule `number`, which ranks have reached or not yet."""
        self._in_force_meanwhile = f"schedule {number}, which was accepted before"
        if self._judged == self.accepted_sha256:
            state = "in force" if in_force else "accepted, starts soon"
            self._say(state, self.accepted_sha256, [], {"schedule_number": number, "from_step": start_step})

    def say_applied(self, number: int, start_step: int) -> None:
        """Completes the status: schedule `number` is what the scheduler makes of the target or the straggler."""
        if (
            self._judged == self._sha256
            and not self.problem
            and self._sha256
            and (self.target is not None or self.straggler is not None)
        ):
            more = {"schedule_number": number, "from_step": start_step}
            self._say("heeded by the scheduler", self._sha256, [], more)

    def _say(
        self, state: str, sha256: str, problems: list[tuple[int | None, str]], more: dict[str, int] | None = None
    ) -> None:
        document: dict[str, object] = {"state": state}
        if sha256:
            document["sha256_of_schedule_yaml"] = sha256
        document.update(more or {})
        if problems:
            document["problems"] = [
                {"line": line, "reason": reason} if line else {"reason": reason} for line, reason in problems
            ]
            if state == "rejected":
                document["in_force_meanwhile"] = self._in_force_meanwhile or "the scheduler's own schedule"
        text = yaml.safe_dump(document, sort_keys=False, width=110, allow_unicode=True)
        if text == self._status:
            return
        stamp = datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")
        head = f"# Written by pfo-fs at {stamp}: what became of schedule.yaml. Edits here have no effect.\n"
        try:
            self._folder.write_yaml_status(head + text)
            self._status = text
        except StoreError as error:
            log.warning("job %s: schedule.status.yaml cannot be written: %s", self._folder.job_id, error)


def _first(problems: list[tuple[int | None, str]]) -> str:
    line, reason = problems[0]
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    return (f"line {line}: {reason}" if line else reason) + more
