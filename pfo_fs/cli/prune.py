"""`pfo-fs prune`: removes what ended jobs have left in the shared directory."""

from __future__ import annotations

import os
import re
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text
from typer import Option

from pfo_fs.cli.terminal import (
    JsonFlag,
    SharedDirOption,
    err,
    open_directory,
    print_json,
    say,
    show,
    table,
    the_directory,
)

if TYPE_CHECKING:
    from pfo_fs.store.pruning import Leftover

_UNITS_S = {"h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}
"""Seconds in each unit; `m` is no unit, because 5m may mean months."""


def _duration_s(text: str) -> float:
    match = re.fullmatch(r"(\d{1,6}(?:\.\d{1,3})?)\s*([hdw])", text.strip())
    if match is None:
        raise typer.BadParameter(f"{text!r} is not a time with a unit: write hours, days or weeks as 12h, 30d or 8w")
    return float(match[1]) * _UNITS_S[match[2]]


_OLDER = "Only what nothing was written into for this time: 30d, 12h; 1h at least."
OlderThan = Annotated[float, Option(parser=_duration_s, metavar="DURATION", help=_OLDER)]


def prune(
    shared_dir: SharedDirOption = None,
    older_than: OlderThan = "30d",  # type: ignore[assignment]  # the parser gets it
    all_users: Annotated[bool, Option("--all-users", help="Also of other users, as far as this user may.")] = False,
    dry_run: Annotated[bool, Option("--dry-run", "-n", help="Only show what would be removed.")] = False,
    json_: JsonFlag = False,
) -> None:
    """Remove old jobs that have ended, from the archive too; running jobs stay."""
    from pfo_fs.reports.directory import user_name
    from pfo_fs.store.pruning import Pruning

    shared = open_directory(the_directory(shared_dir), in_use=True)
    pruning = Pruning(shared)
    removed: list[Leftover] = []
    others = 0
    with err.status("reading jobs ..."):
        for left in list(pruning.find(older_than_s=older_than)):
            if left.uid != os.geteuid() and not all_users:
                others += 1
            elif dry_run or pruning.remove(left):
                removed.append(left)
    total = sum(left.bytes for left in removed)
    if json_:
        rows = [{**asdict(left), "user": user_name(left.uid), "age_s": round(left.age_s)} for left in removed]
        counts = {"of_other_users": others, "running": pruning.running, "problems": pruning.problems}
        print_json({"dry_run": dry_run, "removed": rows, "bytes": total, **counts})
    else:
        _print(removed, total, dry_run)
        if others:
            say(f"{others} of other users stay; --all-users removes them too, where this user may")
        for problem in pruning.problems:
            say(("not removed: ", "yellow"), problem, to=err)
    if pruning.problems:
        sys.exit(1)


def _print(removed: list[Leftover], total: int, dry_run: bool) -> None:
    from pfo_fs.reports.directory import user_name

    if removed:
        shown = table("what", "path", "user", "days", "files", "kB", left=("path", "user"))
        for left in removed:
            days, size = f"{left.age_s / 86400:,.0f}", f"{left.bytes / 1000:,.0f}"
            shown.add_row(*map(Text, (left.kind, left.path, user_name(left.uid), days, f"{left.files:,}", size)))
        shown.add_row(Text("all"), "", "", "", f"{sum(left.files for left in removed):,}", f"{total / 1000:,.0f}")
        show(shown)
    say(f"{'would remove' if dry_run else 'removed'} {len(removed)}, {total / 1e6:,.1f} MB")
