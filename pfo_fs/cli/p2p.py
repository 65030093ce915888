"""`pfo-fs profile-p2p`: the power of a GPU that waits."""

from __future__ import annotations

import csv
import json
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from pfo_fs.cli.terminal import JsonFlag, err, fail, out


def profile_p2p(
    seconds: Annotated[float, typer.Option(help="How long to wait at each clock.", min=1.0)] = 10.0,
    clock: Annotated[list[int] | None, typer.Option(help="MHz of the waiting GPU; several times for several.")] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="CSV with clock_mhz,power_w,seconds.")] = None,
    json_: JsonFlag = False,
) -> None:
    """Measure on two GPUs what one draws while it waits for the other: --p2p-power of `pfo-fs plan`."""
    from pfo_fs.device.p2p import profile_p2p as measure

    if find_spec("torch") is None:
        fail("two processes wait for each other with PyTorch, which is not installed: pip install torch")
    err.print(f"waiting {seconds:g} s at {len(clock or [0])} clock(s) ...", highlight=False)
    found = measure(seconds, clock or ())
    if output is not None:
        with open(output, "w", newline="") as file:
            writer = csv.DictWriter(file, ["clock_mhz", "power_w", "seconds"])
            writer.writeheader()
            writer.writerows(found["rows"])
    if json_:
        print(json.dumps(found))  # noqa: T201
        return
    table = Table(title=f"{found['gpu']}, waiting for another", title_justify="left", box=SIMPLE_HEAD)
    table.add_column("clock MHz", justify="right")
    table.add_column("power W", justify="right")
    for row in found["rows"]:
        table.add_row(str(row["clock_mhz"] or "default"), f"{row['power_w']:.2f}")
    out.print(table)
