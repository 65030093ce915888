"""Every error that pfo-fs raises, as one tree.

    PfoError
    +- ConfigError (ValueError)      what the user gave cannot be right: degrees, settings, scheduler arguments
    +- PlanError (ValueError)        a plan, profile or schedule is malformed or does not fit the job
    +- RecordError (ValueError)      a file in the shared directory is not a valid record
    +- StoreError (OSError)          the shared directory refuses: permissions, ownership, full, read-only
    |  +- StoreUnavailable           the file system does not answer as it should right now; trying again may help
    |  |  +- FolderAway              a job's folder is not seen now, which says nothing about the files in it
    |  +- AlreadyClaimed             another process owns this name (a rank that is registered twice, say)
    |  +- NotShared                  this host sees another directory than the host of rank 0, or none
    +- DeviceError (RuntimeError)    a GPU cannot be found or does not do as told
    |  +- DevicePermissionError      it could, but this user may not; the message says what to grant
    +- InstructionMismatch (RuntimeError)  training ran other instructions than the schedule says (`strict=True` only)
    +- CoordinationError (RuntimeError)    no schedule could be agreed on (`strict=True` only)
    +- PlannerError (RuntimeError)         the planner's solver failed, or has no answer to what was asked
       +- Impossible (ValueError)          nothing fulfils the request; the message and the fields say what is possible

Messages say what was wrong, where, and what to do about it. Messages may quote files that other people wrote, so
`plain_text` cleans every message when the error is made; bodies of records and log lines are cleaned by it as well.
"""

from __future__ import annotations

_MAX_MESSAGE_CHARS = 20_000


def plain_text(text: str, max_chars: int = 4000, *, keep_lines: bool = False) -> str:
    """Returns `text` such that a terminal or a log shows it and does nothing else.

    Line ends and other white space become spaces. Control characters (escape sequences begin with one), characters
    that change the direction of text, invisible ones and halves of surrogate pairs become question marks.

    Args:
        text: What another process, user or file said.
        max_chars: What is longer is cut, and ends in `...`.
        keep_lines: Line feeds stay.
    """
    if len(text) > max_chars:
        text = text[: max(0, max_chars - 3)] + "..."
    if text.isprintable():
        return text
    if keep_lines:
        return "\n".join(plain_text(line, max_chars) for line in text.split("\n"))
    return "".join(c if c.isprintable() else " " if c.isspace() else "?" for c in text)


class PfoError(Exception):
    """Base class of every error raised by pfo-fs."""

    def __init__(self, *args: object) -> None:
        clean = (plain_text(a, _MAX_MESSAGE_CHARS, keep_lines=True) if isinstance(a, str) else a for a in args)
        super().__init__(*clean)


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


class FolderAway(StoreUnavailable):
    """A job's folder is not seen now. This says nothing about the files in it: none of them counts as removed."""


class NotShared(StoreError):
    """This host sees another directory than the host of rank 0, or none: it is not mounted here, or elsewhere."""


class AlreadyClaimed(StoreError):
    """Another process has taken the name."""


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
