"""`pfo-fs status`: shows the daemon and all jobs on one screen."""

from __future__ import annotations

import json
import time
from typing import Annotated

import typer

from pfo_fs.cli.terminal import (
    DirectoryArgument,
    JsonFlag,
    SharedDirOption,
    fail,
    open_directory,
    out,
    the_directory,
    wrong_usage,
)


def status(
    directory: DirectoryArgument = None,
    shared_dir: SharedDirOption = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Refresh every 2 s until Ctrl-C.")] = False,
    json_: JsonFlag = False,
    ended: Annotated[int, typer.Option(help="How many ended jobs to show.")] = 5,
) -> None:
    """Show the daemon and all jobs: state, ranks, schedule in force, last step, last error."""
    from pfo_fs.reports.status import collect_status, render

    shared_dir = the_directory(directory, shared_dir)
    shared = open_directory(shared_dir)
    if not shared.is_in_use:
        fail(f"{shared_dir} is not a shared directory of pfo-fs: it has no jobs and no daemon. Is the path right?")
    if json_:
        print(json.dumps(collect_status(shared, ended=ended), indent=2))  # noqa: T201
    elif watch:
        from rich.live import Live

        if not out.is_terminal:
            wrong_usage("--watch needs a terminal; leave it out, or use --json in a loop")
        with Live(render(collect_status(shared, ended=ended)), console=out, auto_refresh=False, screen=True) as live:
            while True:
                time.sleep(2)
                live.update(render(collect_status(shared, ended=ended)), refresh=True)
    else:
        # A pipe gets one record per line, however long.
        out.print(render(collect_status(shared, ended=ended)), soft_wrap=not out.is_terminal)
