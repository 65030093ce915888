"""Profiles of jobs: written from the samples of a job, and read for its report."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from pfo_fs.autotune.job_layout import Kind
from pfo_fs.autotune.samples import Point, Samples
from pfo_fs.errors import PlanError
from pfo_fs.planner.profile_csv import COLUMNS, MEASURED_COLUMNS, parse_table, table_text

if TYPE_CHECKING:
    import pandas as pd

_OTHER_GPU = 0.06
"""Relative: a power limit may make a higher clock a little slower than a lower one, by less than this."""
_MOST_ROWS = 50_000
_TIMES_S, _POWERS_W = (1e-6, 1e4), (0.1, 1e5)
"""Other times and powers are not those of an instruction on a GPU."""


def profile_csv(samples: Samples) -> str:
    """Returns everything measured as a CSV."""
    waiting_w = samples.waiting.power_w if samples.waiting.weight else None
    return table_text(((*row, waiting_w) for row in samples.rows()), (*COLUMNS, *MEASURED_COLUMNS), digits=7)


def _plausible_table(text: str, source: str) -> pd.DataFrame:
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
        faster = slowest_first[slowest_first["time"] * (1 + _OTHER_GPU) < slowest_first["time"][::-1].cummax()[::-1]]
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
    table = _plausible_table(text, source)
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


def _or(value: float | None, otherwise: float) -> float:
    return otherwise if value is None or math.isnan(value) else value
