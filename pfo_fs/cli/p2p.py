"""`pfo-fs profile-p2p`: the power of a GPU while it waits for another one (p2p: peer to peer)."""

from __future__ import annotations

import csv
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from pfo_fs.cli.terminal import JsonFlag, err, fail, print_json, say, show, table


def profile_p2p(
    seconds: Annotated[float, typer.Option(help="Seconds of measuring at each clock.", min=1.0, max=3600.0)] = 10.0,
    clock: Annotated[
        list[int] | None, typer.Option(help="MHz of the waiting GPU; may be given several times. Default: not locked.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="CSV file to write, with clock_mhz,power_w,seconds.")
    ] = None,
    json_: JsonFlag = False,
) -> None:
    """Measure the power of a GPU that waits for another one: the value of `pfo-fs plan --p2p-power`. Needs 2 GPUs."""
    from pfo_fs.device.metering.p2p import profile_p2p as measure
    from pfo_fs.reports.atomic_output import output_file

    if find_spec("torch") is None:
        fail("this measurement needs PyTorch, which is not installed: pip install torch")
    say(f"measuring for {seconds:g} s at each of {len(clock or [0])} clock(s) ...", to=err)
    found = measure(seconds, clock or ())
    if output is not None:
        with output_file(output) as file:
            writer = csv.DictWriter(file, ["clock_mhz", "power_w", "seconds"])
            writer.writeheader()
            writer.writerows(found["rows"])
    if json_:
        print_json(found)
        return
    shown = table("clock MHz", "power W", title=f"{found['gpu']} while it waits for another GPU")
    for row in found["rows"]:
        shown.add_row(str(row["clock_mhz"] or "default"), f"{row['power_w']:.2f}")
    show(shown)
