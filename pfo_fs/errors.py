"""Errors that modules share. Most also derive from the built-in error that callers would catch (ValueError, ...).

Messages say what was wrong, where, and what to do about it. Messages may quote files that other people wrote, so
`plain_text` cleans every message when the error is made. It also cleans bodies of records and log lines.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import ValidationError

_MAX_MESSAGE_CHARS = 20_000
"""The longest message: messages quote files of other users, which could fill the log."""


def plain_text(text: str, max_chars: int = 4000, *, keep_lines: bool = False) -> str:
    """Returns `text` in a form that a terminal or a log can show safely.

    Line ends (unless `keep_lines`) and other white space become spaces. Control characters (as in escape sequences),
    characters that change the direction of text, invisible ones and halves of surrogate pairs become question marks.

    Args:
        text: A text from another process, user or file.
        max_chars: A longer text is cut to this length, and ends in `...`.
    """
    if len(text) > max_chars:
        text = text[: max(0, max_chars - 3)] + "..."
    if text.isprintable():
        return text
    if keep_lines:
        return "\n".join(plain_text(line, max_chars) for line in text.split("\n"))
    return "".join(c if c.isprintable() else " " if c.isspace() else "?" for c in text)


_IN_PLAIN_WORDS = (
    ("^Field required$", "is missing"),
    ("^Invalid JSON: ", "is not JSON: "),
    ("^[A-Z][a-z]+ should ", "must "),
    (", (unable|got) .*| after validation.*", ""),
    ("a valid integer", "a whole number"),
    ("a valid dictionary", "a JSON object"),
    ("a valid boolean", "true or false"),
    ("a valid ", "a "),
    ("greater than or equal to", "at least"),
    ("less than or equal to", "at most"),
)
"""Parts of pydantic's messages, and the words of pfo-fs for them."""


def first_problem(error: ValidationError) -> tuple[str, str]:
    """Returns where the first wrong value of a document is (keys, joined by points), and what is wrong."""
    first = error.errors(include_url=False)[0]
    where, wrong = ".".join(map(str, first["loc"])), first["msg"].removeprefix("Value error, ")
    for theirs, ours in _IN_PLAIN_WORDS:
        wrong = re.sub(theirs, ours, wrong)
    if wrong.startswith("must ") and isinstance(first["input"], str | int | float):
        wrong += f", not {first['input']!r:.100}"
        if share := re.fullmatch(r"\+?(\d{1,3}(?:\.\d+)?) ?%", str(first["input"]).strip()):
            wrong += f" (a slowdown of {share[1]} % is {1 + float(share[1]) / 100:g})"
    return plain_text(where, 300), plain_text(wrong, 500)


class PfoError(Exception):
    """Base class of the errors of pfo-fs; messages are cleaned by `plain_text`."""

    def __init__(self, *args: object) -> None:
        clean = (plain_text(a, _MAX_MESSAGE_CHARS, keep_lines=True) if isinstance(a, str) else a for a in args)
        super().__init__(*clean)


class ConfigError(PfoError, ValueError):
    """A setting or argument is not valid."""


class InvalidArgument(ConfigError):
    """An argument of a power-limit optimizer is not valid; raised before training begins, like Zeus's ValueError."""


class PlanError(PfoError, ValueError):
    """A plan, profile or schedule is malformed, or does not fit the job it is meant for.

    `line` is the 1-based line of the file that has the error; None if there is no file.
    """

    def __init__(self, message: str, *, line: int | None = None) -> None:
        super().__init__(message)
        self.line = line


class RecordError(PfoError, ValueError):
    """A file in the shared directory is not a valid record: incomplete, too large, not of pfo-fs, or of another job."""


class StoreError(PfoError, OSError):
    """The shared directory cannot be used as asked."""


class StoreUnavailable(StoreError):
    """The file system gave an error that may pass: stale handle, timeout, lost connection."""


class NotShared(StoreError):
    """This host does not see the directory of rank 0's host: it is not mounted here, or is mounted at another path."""


class AlreadyClaimed(StoreError):
    """Another process has already claimed the name."""


class DeviceError(PfoError, RuntimeError):
    """A GPU cannot be found, or did not do what was requested."""


class DevicePermissionError(DeviceError):
    """This user may not change the GPU's clocks or power limit."""


class NotOffered(DeviceError):
    """This GPU, its driver or the installed package does not have what was asked for; asking again does not help."""


class GpuLost(DeviceError):
    """The GPU does not answer: it has fallen off the bus, or needs a reset. pfo-fs asks it again rarely."""


class InstructionMismatch(PfoError, RuntimeError):
    """Training runs other instructions than those of the schedule in force."""


class CoordinationError(PfoError, RuntimeError):
    """Ranks could not agree on a schedule, or a rank could not reach its helper, or got no answer from it."""


class PolicyFailed(PfoError, RuntimeError):
    """A job's scheduler has failed, or needs more memory or time than a job may have."""


class PolicyLost(PfoError, RuntimeError):
    """The process of a job's scheduler was ended from outside, not by the job; another process can take its place."""


class PlannerError(PfoError, RuntimeError):
    """The planner's solver failed or found no plan."""


class Impossible(PlannerError, ValueError):
    """No plan fulfils a request.

    `asked` is the requested value and `best` the nearest possible one, both in the request's unit.
    """

    def __init__(self, message: str, *, asked: float = float("nan"), best: float = float("nan")) -> None:
        super().__init__(message)
        self.asked = asked
        self.best = best
