"""Every error that pfo-fs raises, as one tree.

    PfoError
    +- ConfigError (ValueError)      what the user gave cannot be right: degrees, settings, scheduler arguments
    +- PlanError (ValueError)        a plan, profile or schedule is malformed or does not fit the job
    +- RecordError (ValueError)      a file in the shared directory is not a valid record
    +- StoreError (OSError)          the shared directory refuses: permissions, ownership, full, read-only
    |  +- StoreUnavailable           the file system does not answer as it should right now; trying again may help
    |  +- AlreadyClaimed             somebody else owns this name (a rank that is registered twice, say)
    +- DeviceError (RuntimeError)    a GPU cannot be found or does not do as told
    |  +- DevicePermissionError      it could, but this user may not; the message says what to grant
    +- InstructionMismatch (RuntimeError)  training ran other instructions than the schedule says (`strict=True` only)
    +- CoordinationError (RuntimeError)    no schedule could be agreed on (`strict=True` only)
    +- PlannerError (RuntimeError)         the planner's solver failed, or has no answer to what was asked
       +- Impossible (ValueError)          nothing fulfils the request; the message and the fields say what is possible

Messages say what was wrong, where, and what to do about it.
"""

from __future__ import annotations


class PfoError(Exception):
    """Base class of every error raised by pfo-fs."""


class ConfigError(PfoError, ValueError):
    """A setting or argument cannot be right."""


class PlanError(PfoError, ValueError):
    """A plan, profile or schedule is malformed, or does not fit the job it is meant for.

    `line` is the 1-based line in the file it came from, when there is one.
    """

    def __init__(self, message: str, *, line: int | None = None) -> None:
        super().__init__(message)
        self.line = line


class RecordError(PfoError, ValueError):
    """A file in the shared directory is not a record of ours: torn, foreign, too large, or of another job."""


class StoreError(PfoError, OSError):
    """The shared directory cannot be used as asked."""


class StoreUnavailable(StoreError):
    """The file system gave an error that may pass: stale handle, timeout, lost connection."""


class AlreadyClaimed(StoreError):
    """The name is taken by somebody else."""


class DeviceError(PfoError, RuntimeError):
    """A GPU cannot be found, or did not do as told."""


class DevicePermissionError(DeviceError):
    """This user may not change the GPU's clocks."""


class InstructionMismatch(PfoError, RuntimeError):
    """The instructions that training runs are not those of the schedule in force."""


class CoordinationError(PfoError, RuntimeError):
    """Ranks could not agree on a schedule."""


class PlannerError(PfoError, RuntimeError):
    """The planner's solver gave no answer."""


class Impossible(PlannerError, ValueError):
    """No plan fulfils a request.

    `asked` is what was asked for and `best` the nearest that can be had, both in the request's unit.
    """

    def __init__(self, message: str, *, asked: float = float("nan"), best: float = float("nan")) -> None:
        super().__init__(message)
        self.asked = asked
        self.best = best
