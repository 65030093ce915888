"""What all commands share: the consoles, common options, and errors that end a command.

Text that other users have written (messages, names, file contents) reaches a terminal or a log only through `say`,
`fail`, `PlainFormatter` or `plain_text`: its markup has no effect, and control characters become question marks.
"""

from __future__ import annotations

import inspect
import json
import logging
import os
import sys
from collections.abc import Callable, Collection
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console, RenderableType
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text
from typer import Argument, Option
from typer.core import TyperCommand

from pfo_fs.errors import first_problem, plain_text

if TYPE_CHECKING:
    from pfo_fs.store import SharedDirectory

_MOST_CHARS = 20_000

out = Console()
err = Console(stderr=True)

HELP = {"help_option_names": ["-h", "--help"]}
"""Settings of all commands: help has a short name."""


class PlainCommand(TyperCommand):
    """A command whose usage errors are in plain words: typer would give the messages of pydantic."""

    def make_context(self, *args: Any, **extra: Any) -> Any:
        """Reads the command line."""
        from pydantic import ValidationError

        try:
            context = super().make_context(*args, **extra)
            for name, value in context.params.items():
                if value != value:  # a limit of typer 0.19 lets NaN pass
                    raise typer.BadParameter(f"--{name.replace('_', '-')}: it is not a number")
            return context
        except typer.BadParameter as error:
            if isinstance(error.__cause__, ValidationError):
                error.message = first_problem(error.__cause__)[1]
            raise


def directory_path(text: str) -> Path:
    """Returns the path that a user gave for a directory; `~` is the user's home."""
    if not text.strip():
        raise typer.BadParameter("it is empty; give the path of the shared directory")
    return Path(text).expanduser()


def plausible_slowdown(value: float | None) -> float | None:
    """Refuses a target that the user cannot mean: 5 for 5 %."""
    from pfo_fs.models import implausible

    if problem := implausible(value):
        raise typer.BadParameter(problem)
    return value


# `parser`: without it, typer looks at the path while it reads the command line, and hangs if the mount does.
_DIRECTORY = {"help": "Path of the shared directory.", "parser": directory_path}
DirectoryArgument = Annotated[Path | None, Argument(metavar="[SHARED_DIR]", **_DIRECTORY)]
SharedDirOption = Annotated[Path | None, Option("--shared-dir", "-d", envvar="PFO_FS_SHARED_DIR", **_DIRECTORY)]
JsonFlag = Annotated[bool, Option("--json", help="Print JSON for programs.")]
SLOWDOWN = "Longest iteration, as a multiple of the time at max clocks: 1.05."
SlowdownOption = Annotated[float | None, Option(callback=plausible_slowdown, help=SLOWDOWN)]
DeadlineOption = Annotated[float | None, Option(help="Longest iteration in s.")]
PowerOption = Annotated[float | None, Option(help="Highest average power in W, all GPUs together.")]
NumRanksOption = Annotated[int | None, Option(help="Ranks of a pipeline that hold several stages each (interleaved).")]


def say(*parts: str | tuple[str, str], to: Console = out) -> None:
    """Prints a text: markup in it has no effect, and control characters become question marks."""
    line = Text()
    for part in parts:
        text, style = (part, "") if isinstance(part, str) else part
        line.append(plain_text(text, _MOST_CHARS, keep_lines=True), style)
    to.print(line, highlight=False, soft_wrap=True)


def fail(text: str, code: int = 1) -> NoReturn:
    """Ends the command with a message, and with exit code 1 if nothing else is given."""
    say(("error: ", "bold red"), text, to=err)
    sys.exit(code)


def wrong_usage(text: str) -> NoReturn:
    """Ends the command with a message and exit code 2: the command line itself is wrong."""
    fail(text, 2)


def print_json(document: object) -> None:
    """Prints the answer of a command for programs: one document, on standard output."""
    print(json.dumps(document))  # noqa: T201


def table(*columns: str, left: Collection[str] = (), title: str = "", caption: str = "") -> Table:
    """Returns an empty table: figures to the right, the first column and those in `left` to the left."""
    made = Table(
        title=Text(title) if title else None,
        caption=Text(caption) if caption else None,
        title_justify="left",
        caption_justify="left",
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    for number, name in enumerate(columns):
        made.add_column(name, justify="left" if not number or name in left else "right", no_wrap=True)
    return made


def show(renderable: RenderableType) -> None:
    """Prints a table or text as wide as it has to be: a terminal wraps lines, and numbers are never cut."""
    wide = out.options.update(width=1000, max_width=1000)
    width = max(out.width, Measurement.get(out, wide, renderable).maximum)
    Console(width=width).print(renderable, crop=False, highlight=False)


def the_directory(shared_dir: Path | None) -> Path:
    """Returns the shared directory; fails where none is named."""
    if shared_dir is None:
        wrong_usage("name the shared directory: as an argument, by -d (--shared-dir) or in PFO_FS_SHARED_DIR")
    return shared_dir


def takes_directory(command: Callable[..., None]) -> Callable[..., None]:
    """Lets a command with an option for the shared directory take it as its last argument, too."""
    own = inspect.signature(command, eval_str=True)
    if "shared_dir" not in own.parameters:
        return command
    last = inspect.Parameter("directory", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=DirectoryArgument)
    optional = [name for name in ("job", "file") if name in own.parameters and own.parameters[name].default is None]

    @wraps(command)
    def run(*, directory: Path | None, shared_dir: Path | None, **options: Any) -> None:
        for name in optional:  # the job or file before the directory may be left out
            if directory is None and options[name] and os.path.isdir(os.path.join(options[name], "jobs")):
                directory, options[name] = Path(options[name]), None
        by_environment = os.path.expanduser(os.environ.get("PFO_FS_SHARED_DIR", ""))
        if directory is not None and shared_dir is not None and str(shared_dir) not in (str(directory), by_environment):
            meant = "" if os.path.isdir(directory) else f". A page about one job: `pfo-fs report {directory}`"
            wrong_usage(f"two shared directories: {directory} and {shared_dir}; name the one that you mean{meant}")
        command(shared_dir=directory or shared_dir, **options)

    run.__signature__ = own.replace(parameters=[*own.parameters.values(), last])  # type: ignore[attr-defined]
    return run


class PlainFormatter(logging.Formatter):
    """Formats a log record as one line, and begins the lines of a traceback with spaces.

    So a name or a message from a file cannot imitate a log line.
    """

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the name that `logging` calls
        record.message = plain_text(record.message, _MOST_CHARS)
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:  # noqa: N802 - the name that `logging` calls
        return "\n".join(f"  {plain_text(line, _MOST_CHARS)}" for line in super().formatException(ei).splitlines())


def open_directory(shared_dir: Path, *, in_use: bool = False) -> SharedDirectory:
    """Returns the shared directory at a path that the user gave; `in_use`: a daemon or a job must have been there.

    Raises:
        StoreError: The directory is not there or cannot be used.
    """
    from pfo_fs.store import Files, SharedDirectory, layout

    shared = SharedDirectory(Files(shared_dir, create=False))
    if in_use and {layout.JOBS, layout.DAEMON}.isdisjoint(shared.files.names()):
        fail(f"{shared_dir} is not a shared directory of pfo-fs: it has no jobs and no daemon. Is the path right?")
    return shared
