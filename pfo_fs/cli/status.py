"""`pfo-fs status`: shows the daemon and all jobs on one screen."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from pfo_fs.cli.terminal import (
    DirectoryArgument,
    JsonFlag,
    SharedDirOption,
    open_directory,
    out,
    print_json,
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

    shared = open_directory(the_directory(directory, shared_dir), in_use=True)
    if json_:
        print_json(collect_status(shared, ended=ended), indent=2)
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
