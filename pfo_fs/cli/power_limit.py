"""`pfo-fs power-limit`: chooses the best power limit, or the best clock, from a finished profile."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.table import Table

from pfo_fs.cli.terminal import JsonFlag, err, fail, print_json, say, show, table, wrong_usage
from pfo_fs.errors import ConfigError
from pfo_fs.reports.wording import percent
from pfo_fs.user_files import read_user_file

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pfo_fs.power_limit import OptimumSelector
    from pfo_fs.power_limit.measurements import KnobMeasurement


Selector = Literal["max-slowdown", "energy", "time", "zeus-cost"]

_SCATTER = 0.03
"""Relative: by more than this, steps cannot be faster at a lower level unless the machine was busy."""


def power_limit(
    profile: Annotated[Path, typer.Argument(help='JSON as pfo-fs and Zeus write it: {"measurements": [...]}.')],
    selector: Annotated[Selector, typer.Option(help="How to choose.")] = "zeus-cost",
    factor: Annotated[
        float | None, typer.Option(help="For max-slowdown: 1.05 allows 5 % more time than at the highest level.")
    ] = None,
    eta_knob: Annotated[
        float | None, typer.Option(help="For zeus-cost: 1 counts energy only, 0 time only; default 0.5.")
    ] = None,
    world_size: Annotated[
        int | None, typer.Option(help="For zeus-cost: number of GPUs that were measured; default 1.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Picture of time and energy to write: .png, .svg or .pdf.")
    ] = None,
    force: Annotated[bool, typer.Option(help="Choose even from measurements that contradict each other.")] = False,
    json_: JsonFlag = False,
) -> None:
    """Choose the best power limit, or clock, from a profile of GlobalPowerLimitOptimizer (pfo-fs's or Zeus's)."""
    from pfo_fs.ipc.messages import MAX_PROFILE_BYTES
    from pfo_fs.power_limit import MaxSlowdownConstraint, parse_profile

    try:
        chooser = _selector(selector, factor, eta_knob, world_size)
    except ConfigError as error:
        wrong_usage(str(error))
    text = read_user_file(profile, MAX_PROFILE_BYTES, "a profile of power limits")
    measurements = sorted(parse_profile(text, str(profile)), key=lambda m: -m.level)
    knob, unit = measurements[0].knob, measurements[0].unit
    bent = _bent(measurements, unit)
    if bent and not force:
        fail(f"{profile}: {bent}. Measure again on a quiet machine, or give --force to choose nevertheless")
    chosen = chooser.select(measurements)
    if json_:
        rows = [m.model_dump() for m in measurements]
        answer = {"selector": repr(chooser), "knob": knob, "unit": unit, knob: chosen, "measurements": rows}
        print_json(answer)
    else:
        show(_table(measurements, chosen, f"{knob.replace('_', ' ')} {unit}"))
        say(f"{chooser!r}: ", (f"{chosen} {unit}", "bold"))
    if output is not None:
        from pfo_fs.reports.knob_picture import draw_profile

        longest_s = chooser.factor * measurements[0].time if isinstance(chooser, MaxSlowdownConstraint) else None
        draw_profile(measurements, chosen, output, title=f"{profile.name}, {chooser!r}", longest_s=longest_s)
        if not json_:
            say(f"written: {output}")


def _bent(measurements: Sequence[KnobMeasurement], unit: str) -> str:
    """Returns why measurements, highest level first, contradict each other; empty if they do not.

    A lower level never makes steps much faster, so a step that was slower at a higher level was disturbed.
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


def _selector(name: str, factor: float | None, eta_knob: float | None, world_size: int | None) -> OptimumSelector:
    """Returns the selector that the options name; fails if an option belongs to another selector."""
    from pfo_fs.models import MOST_STRAGGLING
    from pfo_fs.power_limit import Energy, MaxSlowdownConstraint, Time, ZeusCost

    takes: dict[str, set[str]] = {
        "max-slowdown": {"--factor"},
        "energy": set(),
        "time": set(),
        "zeus-cost": {"--eta-knob", "--world-size"},
    }
    given = {"--factor": factor, "--eta-knob": eta_knob, "--world-size": world_size}
    for option, value in given.items():
        if value is not None and option not in takes[name]:
            owner = next(other for other, options in takes.items() if option in options)
            wrong_usage(f"{option} belongs to --selector {owner}, not to {name}")
    if name == "max-slowdown":
        if factor is None:
            wrong_usage("--selector max-slowdown needs --factor, such as 1.05 for 5 % more time")
        if factor > MOST_STRAGGLING:
            meant = f"; for {factor:g} % more time, give {1 + factor / 100:g}" if factor <= 100 else ""
            text = f"--factor {factor:g} allows {factor:g} times the time at the highest level{meant}"
            say(("warning: ", "yellow"), text, to=err)
        return MaxSlowdownConstraint(factor)
    if name == "zeus-cost":
        return ZeusCost(0.5 if eta_knob is None else eta_knob, 1 if world_size is None else world_size)
    return Energy() if name == "energy" else Time()


def _table(measurements: Sequence[KnobMeasurement], chosen_level: int, level: str) -> Table:
    caption = "time and energy of the steps measured at each level, all GPUs together"
    shown = table(level, "time s", "slower", "energy J", "saved", "", caption=caption)
    top = measurements[0]
    for m in measurements:
        chosen = m.level == chosen_level
        shown.add_row(
            str(m.level),
            f"{m.time:.4f}",
            percent(m.time / top.time - 1),
            f"{m.energy:,.1f}",
            percent(1 - m.energy / top.energy),
            "chosen" if chosen else "",
            style="bold" if chosen else "",
        )
    return shown
