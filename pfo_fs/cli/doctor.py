"""`pfo-fs doctor`: what works on this node and in the shared directory."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text
from typer import Option

from pfo_fs.cli.terminal import (
    JsonFlag,
    SharedDirOption,
    err,
    out,
    print_json,
    wrong_usage,
)
from pfo_fs.errors import plain_text

if TYPE_CHECKING:
    from pfo_fs.doctor.lines import Check


def doctor(
    shared_dir: SharedDirOption = None,
    peer: Annotated[int, Option(help="Hosts that run this command at the same time.", min=1, max=64)] = 1,
    wait: Annotated[float, Option(help="With --peer: seconds to wait for other hosts.", min=1, max=86_400)] = 120.0,
    answer_within: Annotated[float, Option(help="A slower file operation counts as hung.", min=0.5, max=3600)] = 15.0,
    fix: Annotated[
        bool, Option("--fix", help="Reset clocks and power limits that were left and no job holds.")
    ] = False,
    gpus: Annotated[int | None, Option(help="Number of GPUs; default: all, 1 if simulated.", min=1, max=64)] = None,
    json_: JsonFlag = False,
) -> None:
    """Check what works on this node, and in a shared directory if one is named. Exit code 1 if something does not.

    Changes no setting, unless --fix is given. In the directory it makes some files, and removes them.
    """
    shared = shared_dir
    if peer > 1 and shared is None:
        wrong_usage("--peer tests a shared directory between hosts; name the directory")
    from pfo_fs.doctor.checks import check_node

    checks = [] if shared is None else _check_directory(shared, peer, wait, answer_within)
    checks += check_node(gpus, fix=fix, needs_gpu=shared is None)
    if json_:
        print_json({"ok": all(c.ok is not False for c in checks), "checks": [c._asdict() for c in checks]})
    else:
        out.print(_check_table(checks))
    if any(check.ok is False for check in checks):
        sys.exit(1)


def _check_directory(shared: Path, peers: int, wait_s: float, answer_within_s: float) -> list[Check]:
    from pfo_fs.doctor.directory.process import check_directory_in_time
    from pfo_fs.doctor.lines import lines

    with err.status("starting ...") as line:
        found = check_directory_in_time(
            shared,
            peers=peers,
            wait_s=wait_s,
            answer_within_s=answer_within_s,
            show=lambda text: line.update(Text(plain_text(text))),
        )
    order = list(lines())
    return sorted(found, key=lambda check: order.index(check.name))


def _check_table(checks: list[Check]) -> Table:
    shown = Table("check", "", "found, what it means, what to do", box=SIMPLE_HEAD, pad_edge=False)
    for check in checks:
        word, style = {
            True: ("ok", "green"),
            False: ("no", "bold red"),
            None: ("-", "yellow" if check.hint else "dim"),
        }[check.ok]
        found = Text(plain_text(check.found))
        if check.meaning:
            found.append(f"\n{check.meaning}", "dim")
        if check.hint:
            found.append(f"\n→ {check.hint}", "italic")
        shown.add_row(Text(check.name), Text(word, style), found)
    return shown
