"""Makes a job's scheduler with its arguments, and limits what a job's own files can make a daemon do.

A daemon has its operator's permissions, and the job's user has written `job.json`. So on a job's request a daemon runs
built-in schedulers only, and reads only files in the shared directory, in the process of the job's policy.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

from pfo_fs.errors import ConfigError, PlanError, StoreError
from pfo_fs.models import JobInfo, RankInfo
from pfo_fs.scheduler import FrequencyScheduler, check_scheduler_args, load_scheduler
from pfo_fs.scheduler.plan_file import MAX_PLAN_BYTES
from pfo_fs.settings import PFOSettings
from pfo_fs.store import JobFolder

Kind = Literal["daemon", "local"]
"""Which process schedules a job: a daemon, or the job's own rank 0."""
PLAN_ARG = "solution_path"
"""The only argument of built-in schedulers that names a file."""
_WHERE = f"scheduler_args: {PLAN_ARG}"


def policy_name(name: str, args: Mapping[str, object]) -> str:
    """Returns a scheduler and its arguments in short, as the sources of schedules hold them."""
    exactly = json.dumps([name, args], sort_keys=True)
    return f"{name.rpartition(':')[2][:60]}-{hashlib.sha256(exactly.encode()).hexdigest()[:12]}"


class PolicyCall(NamedTuple):
    """What a policy is made of: its name for `load_scheduler`, and the arguments of its class.

    Attributes:
        copies: The job's folder, and an empty folder for a copy of the plan that the job's arguments name; None where
            the arguments are trusted.
    """

    name: str
    job_info: JobInfo
    rank_infos: Sequence[RankInfo]
    settings: PFOSettings
    args: Mapping[str, Any]
    copies: tuple[JobFolder, str] | None = None

    def make(self) -> FrequencyScheduler:
        """Makes the policy, in this process."""
        cls = load_scheduler(self.name)
        copied = nullcontext(self.args) if self.copies is None else _copy_of_plan(self.args, *self.copies)
        with copied as args:
            check_scheduler_args(cls, args)
            return cls(self.job_info, self.rank_infos, self.settings, **args)


MakePolicy: TypeAlias = Callable[[PolicyCall], FrequencyScheduler]
"""Makes a scheduler: here (`PolicyCall.make`), or in a process of its own (`PolicyProcesses.make`)."""


@contextmanager
def _copy_of_plan(args: Mapping[str, Any], folder: JobFolder, place: str) -> Iterator[Mapping[str, Any]]:
    """Returns the arguments with the path of the plan replaced by that of a private copy in `place`.

    The scheduler gets a copy, because a file could be replaced between the check of its path and its opening.
    """
    if PLAN_ARG not in args:
        yield args
        return
    content, is_own = _read_shared(args[PLAN_ARG], folder)
    copy = Path(place) / Path(args[PLAN_ARG]).name
    copy.write_bytes(content)
    try:
        yield {**args, PLAN_ARG: str(copy)}
    except Exception as error:
        if is_own and not isinstance(error, (PlanError, ConfigError)):
            raise
        text, line = str(error).replace(str(copy), args[PLAN_ARG]), getattr(error, "line", None)
        if not is_own:  # the message may quote the file, and the job's user may not be allowed to read that
            text = (
                f"{args[PLAN_ARG]!r}{f', line {line}' if line else ''}: is not a plan that fits this job. What is "
                f"wrong is only shown for a file in the job's own folder ({folder.path})"
            )
        raise PlanError(text, line=line) from None


def _read_shared(value: object, folder: JobFolder) -> tuple[bytes, bool]:
    """Returns the content of a file of the shared directory, and whether it is in the job's own folder.

    A relative path is searched in the job's folder, then in the shared directory.
    """
    root = str(folder.files.root)
    if not isinstance(value, str) or not value or "\0" in value:
        raise ConfigError(f"{_WHERE} must be the path of a file, not {value!r}")
    path = os.path.normpath(value)
    if os.path.isabs(path):
        tops = [f"{top}/" for top in (root, os.path.realpath(root)) if path.startswith(f"{top}/")]
        inside = path.removeprefix(tops[0]) if tops else ""
        places = [inside] if inside else []
    else:
        places = [] if path.split("/")[0] == ".." else [f"{folder.path}/{path}", path]
    if not places:
        raise ConfigError(
            f"{_WHERE} is {value!r}, which lies outside of the shared directory {root}. When a job asks, "
            "the daemon reads only files in there: copy the file into the shared directory and name that copy, or let "
            "the job schedule itself (coordination='local')"
        )
    for place in places:
        try:
            content = folder.files.read(place, MAX_PLAN_BYTES)
        except StoreError as error:
            raise ConfigError(f"{_WHERE}: {error.args[-1]}") from None
        if content is not None:
            return content, place.startswith(f"{folder.path}/")
    raise ConfigError(f"{_WHERE}: {value!r} is not in the job's folder or in {root}")
