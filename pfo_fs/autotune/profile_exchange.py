"""Profiles for later jobs: written from the samples of one job, and added to those of another."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from pfo_fs.autotune.instruction_runs import Kind
from pfo_fs.autotune.samples import Point, Samples
from pfo_fs.errors import PlanError
from pfo_fs.planner import Profile
from pfo_fs.planner.profile_csv import COLUMNS, MEASURED_COLUMNS, parse_table, table_text

_OTHER_JOB = 0.03
"""Relative: a profile that differs by more at a measured clock belongs to another kind of job."""
OTHER_GPU, SURE_COUNT = 0.06, 5
"""A profile that differs by more than this, relative, under a plan comes from GPUs that behave otherwise at low clocks;
compared are times that were measured at least this often."""
_ERROR = 0.002
"""Relative: the assumed error of a point from an earlier profile."""
_COUNT = 100
_MOST_STAGES, _MOST_CLOCKS = 8, 12
"""At most this many stages and clocks of another job are used for the shapes of curves."""
_MOST_WAITING_W = 2000.0
_MOST_ROWS = 50_000
_TIMES_S, _POWERS_W = (1e-6, 1e4), (0.1, 1e5)
"""Other times and powers in the profile of another job are not those of an instruction on a GPU."""


def profile_csv(samples: Samples) -> str:
    """Returns everything measured as a CSV."""
    waiting_w = samples.waiting.power_w if samples.waiting.weight else None
    return table_text(((*row, waiting_w) for row in samples.rows()), (*COLUMNS, *MEASURED_COLUMNS), digits=7)


def blocking_power_of(table: Any) -> float:
    """Returns the power of a waiting GPU in a profile table, in W; 0 if it has no plausible value."""
    watts = float(table["waiting_power"].iloc[0]) if "waiting_power" in table and len(table) else 0.0
    return watts if 0 < watts < _MOST_WAITING_W else 0.0


def plausible_table(text: str, source: str) -> Any:
    """Returns the table of a profile that another user may have written.

    Raises:
        PlanError: The text is not a profile, or has values that no instruction of a GPU has.
    """
    table = parse_table(text, source)
    if len(table) > _MOST_ROWS:
        raise PlanError(f"{source}: has {len(table):,} rows; at most {_MOST_ROWS:,} are used")
    for what, values, (least, most) in (
        ("time", table["time"], _TIMES_S),
        ("energy over time", table["energy"] / table["time"], _POWERS_W),
    ):
        odd = values[~values.between(least, most)]
        if len(odd):
            unit = "s" if what == "time" else "W"
            raise PlanError(
                f"{source}: row {odd.index[0]}: {what} is {odd.iloc[0]:.3g} {unit}, which no instruction of a GPU has"
            )
    for (stage, name), rows in table.groupby(["stage", "instruction"]):
        slowest_first = rows.sort_values("frequency")
        # A power limit may make a higher clock a little slower, nothing makes it much slower.
        faster = slowest_first[slowest_first["time"] * (1 + OTHER_GPU) < slowest_first["time"][::-1].cummax()[::-1]]
        if len(faster):
            raise PlanError(
                f"{source}: {name} of stage {stage} takes less time at {faster['frequency'].iloc[0]} MHz than at a "
                "higher clock, which no instruction does"
            )
    return table


def points_of(text: str, source: str) -> dict[Kind, dict[int, Point]]:
    """Returns the measured points of a profile CSV with their errors, as the samples had them.

    Raises:
        PlanError: The text is not a profile, or not a plausible one; the message names row and column.
    """
    return table_points(plausible_table(text, source))


def table_points(table: Any) -> dict[Kind, dict[int, Point]]:
    """Returns the points of a table of `plausible_table`."""
    found: dict[Kind, dict[int, Point]] = {}
    for row in table.to_dict("records"):
        power_w = row["energy"] / row["time"]
        time_error, power_error = _or(row.get("time_error"), 0.0), _or(row.get("power_error"), 0.0)
        count = max(2, int(_or(row.get("count"), 2.0)))
        found.setdefault((row["stage"], row["instruction"]), {})[row["frequency"]] = Point(
            count=count,
            time_s=row["time"],
            time_weight=1.0 / max(time_error * row["time"], 1e-6 * row["time"]) ** 2,
            weight=1.0 / max(power_error * power_w, 1e-6 * power_w) ** 2,
            power_w=power_w,
        )
    return found


def thinned(
    points: Mapping[Kind, Mapping[int, Point]], names: Collection[str], clocks_mhz: Collection[int]
) -> dict[Kind, dict[int, Point]]:
    """Returns evenly spread points of some of the stages, which are enough to show the shapes of the curves.

    Args:
        points: The points of another job.
        names: The names of the instructions that this job runs; others are left out.
        clocks_mhz: The clocks that this job's GPUs offer; points above and below all of them are left out.
    """
    stages = sorted({stage for stage, _ in points})
    kept = set(stages[:: max(1, math.ceil(len(stages) / _MOST_STAGES))])
    found: dict[Kind, dict[int, Point]] = {}
    for kind, curve in points.items():
        clocks = sorted((mhz for mhz in curve if min(clocks_mhz) <= mhz <= max(clocks_mhz)), reverse=True)
        if kind[0] in kept and kind[1] in names and clocks:
            found[kind] = {mhz: curve[mhz] for mhz in clocks[:: max(1, math.ceil(len(clocks) / _MOST_CLOCKS))]}
    return found


def _or(value: float | None, otherwise: float) -> float:
    return otherwise if value is None or math.isnan(value) else value


def disagreement(known: Profile, samples: Samples, kinds: Sequence[Kind]) -> str:
    """Returns the first instruction whose measured time differs from a known profile at some clock; '' if none does."""
    for kind in kinds:
        table = {m.frequency_mhz: m for m in known.measurements.get(kind, ())}
        for mhz, point in samples.curve(kind).items():
            there = table.get(mhz)
            if there is None or abs(there.time_s / point.time_s - 1) > _OTHER_JOB:
                return f"{kind[1]} of stage {kind[0]}"
    return ""


def merge_profile(
    samples: Samples, known: Profile, kinds: Sequence[Kind], clocks_mhz: Mapping[int, Sequence[int]]
) -> None:
    """Adds a known profile to the samples, at the clocks on offer where nothing was measured yet.

    Of its times only the ratios to that at the highest clock that both have measured are used.

    Args:
        samples: What this job has measured.
        known: The profile.
        kinds: The kinds of instructions that the job runs.
        clocks_mhz: For each stage, the clocks that its GPUs offer.
    """
    for kind in kinds:
        points = samples.points.setdefault(kind, {})
        there = {m.frequency_mhz: m.time_s for m in known.measurements.get(kind, ())}
        both_mhz = max(there.keys() & points.keys(), default=0)
        scale = points[both_mhz].time_s / there[both_mhz] if both_mhz else 1.0
        for m in known.measurements.get(kind, ()):
            if m.frequency_mhz in clocks_mhz[kind[0]] and m.frequency_mhz not in points:
                point = points[m.frequency_mhz] = Point(borrowed=True)
                point.add_times(_COUNT, scale * m.time_s, _ERROR / 2 * scale * m.time_s)
                point.add_power(m.energy_j / m.time_s, _ERROR * m.energy_j / m.time_s)
