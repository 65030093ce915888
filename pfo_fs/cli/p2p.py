"""`pfo-fs profile-p2p`: the power of a GPU while it waits for another one (p2p: peer to peer)."""

from __future__ import annotations

import csv
import json
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from pfo_fs.cli.terminal import JsonFlag, err, fail, show


def profile_p2p(
    seconds: Annotated[float, typer.Option(help="Seconds of measuring at each clock.", min=1.0)] = 10.0,
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

    if find_spec("torch") is None:
        fail("this measurement needs PyTorch, which is not installed: pip install torch")
    err.print(f"measuring for {seconds:g} s at each of {len(clock or [0])} clock(s) ...", highlight=False)
    found = measure(seconds, clock or ())
    if output is not None:
        with open(output, "w", newline="") as file:
            writer = csv.DictWriter(file, ["clock_mhz", "power_w", "seconds"])
            writer.writeheader()
            writer.writerows(found["rows"])
    if json_:
        print(json.dumps(found))  # noqa: T201
        return
    table = Table(title=f"{found['gpu']} while it waits for another GPU", title_justify="left", box=SIMPLE_HEAD)
    table.add_column("clock MHz", justify="right")
    table.add_column("power W", justify="right")
    for row in found["rows"]:
        table.add_row(str(row["clock_mhz"] or "default"), f"{row['power_w']:.2f}")
    show(table)
