"""Commands that need no job and no shared directory: `pfo-fs power-limit`, `profile-p2p` and `reset-clocks`."""

from __future__ import annotations

import csv
import os
import sys
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from typer import Argument, Option

from pfo_fs.cli.terminal import JsonFlag, err, fail, print_json, say, show, table, wrong_usage
from pfo_fs.errors import ConfigError, DeviceError
from pfo_fs.reports.wording import percent
from pfo_fs.user_files import read_user_file

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from pfo_fs.power_limit import OptimumSelector
    from pfo_fs.power_limit.measurements import KnobMeasurement


Selector = Literal["max-slowdown", "energy", "time", "zeus-cost"]

_SCATTER = 0.03
"""If steps at a lower level (limit or clock) are faster by more than this share, the machine was busy."""
_OWNERS = {"--factor": "max-slowdown", "--eta-knob": "zeus-cost", "--world-size": "zeus-cost"}
"""The selector to which an option belongs."""


_GPUS = "GPU-<UUID>, as `nvidia-smi -L` lists them; default: those that CUDA_VISIBLE_DEVICES names."


def power_limit(
    profile: Annotated[Path, Argument(help='JSON as pfo-fs and Zeus write it: {"measurements": [...]}.')],
    selector: Annotated[Selector, Option(help="Least cost, energy or time; or lowest within --factor.")] = "zeus-cost",
    factor: Annotated[float | None, Option(help="For max-slowdown: 1.05 allows 5 % more time.")] = None,
    eta_knob: Annotated[float | None, Option(help="For zeus-cost: 1 counts energy, 0 time; default 0.5.")] = None,
    world_size: Annotated[int | None, Option(help="For zeus-cost: GPUs that were measured; default 1.")] = None,
    force: Annotated[bool, Option(help="Choose even from measurements that contradict each other.")] = False,
    json_: JsonFlag = False,
) -> None:
    """Choose the best power limit, or clock, from a profile of GlobalPowerLimitOptimizer (pfo-fs's or Zeus's)."""
    from pfo_fs.ipc.messages import MAX_PROFILE_BYTES
    from pfo_fs.power_limit import parse_profile

    try:
        chooser = _selector(selector, factor, eta_knob, world_size)
    except ConfigError as wrong:
        wrong_usage(str(wrong))
    text = read_user_file(profile, MAX_PROFILE_BYTES, "a profile of power limits")
    measurements = sorted(parse_profile(text, str(profile)), key=lambda m: -m.level)
    knob, unit = measurements[0].knob, measurements[0].unit
    bent = _bent(measurements, unit)
    if bent and not force:
        fail(f"{profile}: {bent}. Measure again on a quiet machine, or give --force to choose nevertheless")
    chosen = chooser.select(measurements)
    if json_:
        rows = [m.model_dump() for m in measurements]
        print_json({"selector": repr(chooser), "knob": knob, "unit": unit, knob: chosen, "measurements": rows})
        return
    show(_levels_table(measurements, chosen, f"{knob.replace('_', ' ')} {unit}"))
    say(f"{chooser!r}: ", (f"{chosen} {unit}", "bold"))


def _bent(measurements: Sequence[KnobMeasurement], unit: str) -> str:
    """Returns why measurements, highest level first, contradict each other; empty if they do not.

    A lower level never makes steps much faster, so steps that were much slower at a higher level were disturbed.
    """
    slowest = measurements[0]
    for lower in measurements[1:]:
        if lower.time < slowest.time * (1 - _SCATTER):
            return (
                f"the steps took {slowest.time:.4g} s at {slowest.level} {unit}, but only {lower.time:.4g} s at the "
                f"lower level of {lower.level} {unit}, so the machine was busy or GPUs were not warm"
            )
        slowest = max(slowest, lower, key=lambda m: m.time)
    return ""


def _selector(name: Selector, factor: float | None, eta_knob: float | None, world_size: int | None) -> OptimumSelector:
    """Returns the selector that the options name; fails if an option belongs to another selector."""
    from pfo_fs.models import MOST_STRAGGLING, implausible
    from pfo_fs.power_limit import Energy, MaxSlowdownConstraint, Time, ZeusCost

    given = {"--factor": factor, "--eta-knob": eta_knob, "--world-size": world_size}
    for option, owner in _OWNERS.items():
        if given[option] is not None and owner != name:
            wrong_usage(f"{option} belongs to --selector {owner}, not to {name}")
    if name == "energy":
        return Energy()
    if name == "time":
        return Time()
    if name == "zeus-cost":
        return ZeusCost(0.5 if eta_knob is None else eta_knob, 1 if world_size is None else world_size)
    if factor is None:
        wrong_usage("--selector max-slowdown needs --factor, such as 1.05 for 5 % more time")
    if problem := implausible(factor, MOST_STRAGGLING):
        wrong_usage(f"--factor: {problem}")
    return MaxSlowdownConstraint(factor)


def _levels_table(measurements: Sequence[KnobMeasurement], chosen_level: int, level: str) -> Table:
    caption = "time and energy of the steps measured at each level, all GPUs together"
    shown = table(level, "time s", "slower", "energy J", "saved", "", caption=caption)
    top = measurements[0]
    for m in measurements:
        chosen = m.level == chosen_level
        slower, saved = percent(m.time / top.time - 1), percent(1 - m.energy / top.energy)
        cells = str(m.level), f"{m.time:.4f}", slower, f"{m.energy:,.1f}", saved, "chosen" if chosen else ""
        shown.add_row(*cells, style="bold" if chosen else "")
    return shown


def profile_p2p(
    seconds: Annotated[float, Option(help="Seconds for each clock, after 1 s to warm up.", min=1.0, max=3600.0)] = 10.0,
    clock: Annotated[
        list[int] | None, Option(help="MHz of the waiting GPU; repeat for more clocks. Default: not locked.")
    ] = None,
    output: Annotated[Path | None, Option("--output", "-o", help="CSV to write: clock_mhz,power_w,seconds.")] = None,
    json_: JsonFlag = False,
) -> None:
    """Measure the power of a GPU that waits for another one: the value of `pfo-fs plan --p2p-power`. Needs 2 GPUs."""
    from pfo_fs.device.metering.p2p import profile_p2p as measure
    from pfo_fs.reports.atomic_output import output_file

    if find_spec("torch") is None:
        fail("this measurement needs PyTorch, which is not installed: pip install torch")
    say(f"measuring for {seconds:g} s at each of {len(clock or [0])} clock(s) ...", to=err)
    measured = measure(seconds, clock or ())
    if output is not None:
        with output_file(output) as file:
            writer = csv.DictWriter(file, ["clock_mhz", "power_w", "seconds"])
            writer.writeheader()
            writer.writerows(measured["rows"])
    if json_:
        print_json(measured)
        return
    shown = table("clock MHz", "power W", title=f"{measured['gpu']} while it waits for another GPU")
    for row in measured["rows"]:
        shown.add_row(str(row["clock_mhz"] or "default"), f"{row['power_w']:.2f}")
    show(shown)


def reset_clocks(
    gpus: Annotated[list[str] | None, Argument(metavar="[GPU]...", help=_GPUS)] = None,
    power_limit: Annotated[float | None, Option(help="Also set this power limit, in W.", min=1.0)] = None,
    wait: Annotated[float, Option(help="Try for this time, in s, if the driver refuses.", min=0.0, max=3600.0)] = 10.0,
) -> None:
    """Reset the clocks of GPUs to their default, after a job: for the epilog of a batch system, as root.

    A power limit that a job of this user has set and left in force goes back to what it was before, unless
    --power-limit names another. Where the driver can tell, the command checks that the GPU shows the change; if not, it
    tries again for the time of --wait. Exit status: 0 if all GPUs are reset, 1 if not.
    """
    from pfo_fs.device.gpu.find_gpu import visible_uuids

    if not gpus and not os.environ.get("CUDA_VISIBLE_DEVICES"):
        wrong_usage("name the GPUs, or set CUDA_VISIBLE_DEVICES: other jobs may use the node's other GPUs")
    specs = [f"nvml:{name}" if name.startswith("GPU-") else name for name in gpus or visible_uuids()]
    if not specs:
        fail("CUDA_VISIBLE_DEVICES names no GPU of this host")
    problems = [_reset(spec, power_limit, wait) for spec in specs]
    if any(problems):
        sys.exit(1)


def _reset(spec: str, power_limit_w: float | None, wait_s: float) -> str:
    """Resets one GPU, and says so; returns what could not be done, or ''."""
    from pfo_fs.device.clocks.undo import reset_left
    from pfo_fs.device.gpu.interface import POWER_CAP
    from pfo_fs.device.gpu.spec import open_gpu

    limits_only = os.environ.get("PFO_FS_CLOCK_BACKEND") == POWER_CAP  # else the first way that works
    way = POWER_CAP if limits_only else "amdsmi" if spec.startswith("amd:") else "auto"
    try:
        with closing(open_gpu(spec, way)) as gpu:
            problem = reset_left(gpu, wait_s, power_limit_w=power_limit_w)
    except DeviceError as error:
        problem = str(error)
    if problem:
        say(("error: ", "bold red"), f"{spec}: {problem}", to=err)
    else:
        say(f"{spec}: default clocks{f', {power_limit_w:g} W' if power_limit_w is not None else ''}")
    return problem
