"""`pfo-fs reset-clocks`: resets clocks that a killed job may have left lowered; for the epilog of a batch system."""

from __future__ import annotations

import os
import sys
from contextlib import closing
from typing import Annotated

import typer

from pfo_fs.cli.terminal import err, say, wrong_usage


def reset_clocks(
    gpus: Annotated[
        list[str] | None,
        typer.Argument(metavar="[GPU]...", help="nvml:<UUID>; default: those that CUDA_VISIBLE_DEVICES names."),
    ] = None,
    power_limit: Annotated[float | None, typer.Option(help="Also set this power limit, in W.", min=1.0)] = None,
) -> None:
    """Reset the clocks of GPUs to their default, after a job: for the epilog of a batch system, as root."""
    from pfo_fs.device.gpu_spec import open_gpu
    from pfo_fs.device.nvml import visible_uuids
    from pfo_fs.errors import DeviceError

    if not gpus and not os.environ.get("CUDA_VISIBLE_DEVICES"):
        wrong_usage("name the GPUs, or set CUDA_VISIBLE_DEVICES: other jobs may use the node's other GPUs")
    failed = False
    for spec in gpus or [f"nvml:{uuid}" for uuid in visible_uuids()]:
        try:
            with closing(open_gpu(spec)) as gpu:
                gpu.reset_clocks()
                if power_limit is not None:
                    gpu.set_power_limit_w(power_limit)
            say(f"{spec}: default clocks{f', {power_limit:g} W' if power_limit is not None else ''}")
        except DeviceError as error:
            failed = True
            say(("error: ", "bold red"), f"{spec}: {error}", to=err)
    if failed:
        sys.exit(1)
