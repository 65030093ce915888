"""`pfo-fs doctor`: what works on this node and in the shared directory; with `--switching`, what clock changes cost."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text
from typer import Option

from pfo_fs.cli.terminal import (
    JsonFlag,
    SharedDirOption,
    err,
    fail,
    out,
    print_json,
    say,
    show,
    table,
    wrong_usage,
)
from pfo_fs.errors import plain_text

if TYPE_CHECKING:
    from pfo_fs.doctor.lines import Check
    from pfo_fs.switching_file import MeasuredSwitching


_SWITCHING = Path("switching.json")


def doctor(
    shared_dir: SharedDirOption = None,
    peer: Annotated[int, Option(help="Hosts that run this command at the same time.", min=1, max=64)] = 1,
    wait: Annotated[float, Option(help="With --peer: seconds to wait for other hosts.", min=1, max=86_400)] = 120.0,
    answer_within: Annotated[float, Option(help="A slower file operation counts as hung.", min=0.5, max=3600)] = 15.0,
    fix: Annotated[
        bool, Option("--fix", help="Reset clocks and power limits that were left and no job holds.")
    ] = False,
    switching: Annotated[bool, Option("--switching", help="Measure what clock changes cost; takes a minute.")] = False,
    output: Annotated[Path, Option("--output", "-o", help="With --switching: the file to write.")] = _SWITCHING,
    gpus: Annotated[int | None, Option(help="Number of GPUs; default: all, 1 if simulated.", min=1, max=64)] = None,
    yes: Annotated[bool, Option("--yes", "-y", help="Do not ask before clocks are set.")] = False,
    json_: JsonFlag = False,
) -> None:
    """Check what works on this node, and in a shared directory if one is named. Exit code 1: something does not.

    Changes no setting, unless --fix or --switching is given. In the directory it makes some files, and removes them.
    """
    if switching:
        _switching(gpus, output, yes, json_)
        return
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


def _switching(most: int | None, output: Path, yes: bool, json_: bool) -> None:
    from pfo_fs.doctor.checks import gpu_specs
    from pfo_fs.doctor.switching import held_gpus, measure_switching
    from pfo_fs.reports.atomic_output import output_file

    if not output.absolute().parent.is_dir():
        fail(f"--output {output}: there is no folder {output.absolute().parent}")
    specs = gpu_specs(most)
    _ask(len(specs), yes)
    with held_gpus(specs) as gpus, err.status("starting ...") as line:
        found = measure_switching(gpus, line.update)
    with output_file(output) as file:
        file.write(found.model_dump_json(indent=2) + "\n")
    if json_:
        print_json(found.model_dump(mode="json"))
        return
    show(_found_table(found))
    if found.not_measured:
        say(("when clocks act was not measured: ", "yellow"), found.not_measured)
    say("all clocks are reset; written: ", str(output))


def _ask(count: int, yes: bool) -> None:
    """Asks for permission to set clocks, on a terminal; without one, `--yes` must be given."""
    text = f"This sets the clocks of {count} GPU(s) for a minute or more, and resets them at the end."
    if yes:
        return
    if not (sys.stdin.isatty() and err.is_terminal):
        fail(f"{text} Give --yes if the owner of this node agrees")
    if not typer.confirm(f"{text} Go on?", err=True):
        fail("nothing was measured")


def _found_table(found: MeasuredSwitching) -> Table:
    title = f"{found.gpu}, {found.gpus} GPU(s), clocks set by {found.clock_backend}"
    shown = table("", "", title=plain_text(title))
    shown.show_header = False
    shown.add_row("a call takes", f"{found.call_s.median * 1e3:.1f} ms (99 %: {found.call_s.p99 * 1e3:.1f} ms)")
    shown.add_row("jobs should make at most", f"{found.max_calls_per_s:g} calls/s on this node")
    if found.latency_s:
        few = ", ".join(f"{mhz} MHz {latency_s * 1e3:.1f}" for mhz, latency_s in found.latency_s.items())
        shown.add_row("a clock acts after", f"{few} (ms after the call)")
    return shown
