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
    wait: Annotated[
        float,
        typer.Option(help="Try for this time, in s, if the driver refuses or does not do it.", min=0.0, max=3600.0),
    ] = 10.0,
) -> None:
    """Reset the clocks of GPUs to their default, after a job: for the epilog of a batch system, as root.

    A power limit that a job of this user has noted, and that is still in force, goes back to what it was before. The
    command looks whether the GPU shows the change, where the driver can tell, and tries again until it does. Exit
    status: 0 if all GPUs are reset, 1 if not.
    """
    from pfo_fs.device.gpu.find_gpu import visible_uuids
    from pfo_fs.errors import DeviceError

    if not gpus and not os.environ.get("CUDA_VISIBLE_DEVICES"):
        wrong_usage("name the GPUs, or set CUDA_VISIBLE_DEVICES: other jobs may use the node's other GPUs")
    try:
        specs = gpus or [f"nvml:{uuid}" for uuid in visible_uuids()]
    except DeviceError as error:
        say(("error: ", "bold red"), str(error), to=err)
        sys.exit(1)
    failed = not specs
    if failed:
        say(("error: ", "bold red"), "CUDA_VISIBLE_DEVICES names no GPU of this host", to=err)
    for spec in specs:
        problem = _reset(spec, power_limit, wait)
        if problem:
            failed = True
            say(("error: ", "bold red"), f"{spec}: {problem}", to=err)
        else:
            say(f"{spec}: default clocks{f', {power_limit:g} W' if power_limit is not None else ''}")
    if failed:
        sys.exit(1)


def _reset(spec: str, power_limit_w: float | None, wait_s: float) -> str:
    """Resets one GPU; returns what could not be done, or ''."""
    from pfo_fs.device.clocks.undo import reset_left
    from pfo_fs.device.gpu.spec import open_gpu
    from pfo_fs.errors import DeviceError

    try:
        with closing(open_gpu(spec)) as gpu:
            return reset_left(gpu, wait_s, power_limit_w=power_limit_w)
    except DeviceError as error:
        return str(error)
