"""What all commands share: the consoles, common options, and errors that end a command with exit code 1.

Text that other users have written (messages, names, file contents) reaches a terminal or a log only through `say`,
`fail` and `PlainFormatter`, which show its markup and control characters as text.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.text import Text

from pfo_fs.errors import plain_text

if TYPE_CHECKING:
    from pfo_fs.store import SharedDirectory

_MOST_CHARS = 20_000

out = Console()
err = Console(stderr=True)

SharedDir = Annotated[Path, typer.Argument(help="Path of the shared directory.", envvar="PFO_FS_SHARED_DIR")]
JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]


def say(*parts: str | tuple[str, str], to: Console = out) -> None:
    """Prints one line; markup and control characters in it are printed as text and have no effect.

    Args:
        parts: Texts, or pairs of a text and its style.
        to: The console.
    """
    line = Text()
    for part in parts:
        text, style = (part, "") if isinstance(part, str) else part
        line.append(plain_text(text, _MOST_CHARS, keep_lines=True), style)
    to.print(line, highlight=False, soft_wrap=True)


def fail(text: str) -> NoReturn:
    """Ends the command with a message and exit code 1."""
    say(("error: ", "bold red"), text, to=err)
    sys.exit(1)


class PlainFormatter(logging.Formatter):
    """Formats a log record as one line, and begins the lines of a traceback with spaces.

    So a name or a message from a file cannot imitate a log line.
    """

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the name that `logging` calls
        record.message = plain_text(record.message, _MOST_CHARS)
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:  # noqa: N802 - the name that `logging` calls
        return "\n".join(f"  {plain_text(line, _MOST_CHARS)}" for line in super().formatException(ei).splitlines())


def open_directory(shared_dir: Path) -> SharedDirectory:
    """Returns the shared directory at a path that the user gave.

    Raises:
        StoreError: The directory is not there or cannot be used.
    """
    from pfo_fs.store import Files, SharedDirectory

    return SharedDirectory(Files(shared_dir, create=False))
