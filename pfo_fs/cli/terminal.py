"""What all commands share: the consoles, common options, and errors that end a command with exit code 1."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer
from rich.console import Console
from rich.markup import escape

if TYPE_CHECKING:
    from pfo_fs.store import SharedDirectory

out = Console()
err = Console(stderr=True)

SharedDir = Annotated[Path, typer.Argument(help="The shared directory.", envvar="PFO_FS_SHARED_DIR")]
JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]


def fail(text: str) -> NoReturn:
    """Ends the command with a message and exit code 1."""
    err.print(f"[bold red]error:[/] {escape(text)}", highlight=False, soft_wrap=True)
    sys.exit(1)


def open_directory(shared_dir: Path) -> SharedDirectory:
    """The shared directory that a person named, which must be there."""
    from pfo_fs.store import Files, SharedDirectory

    return SharedDirectory(Files(shared_dir, create=False))
