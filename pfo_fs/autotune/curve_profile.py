"""The profile that plans are made with: estimates of time and energy at each clock, with their errors."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pfo_fs.autotune.clock_curves import fit_curves
from pfo_fs.autotune.instruction_runs import Kind
from pfo_fs.autotune.samples import Point, Samples, is_checked
from pfo_fs.autotune.window_choice import MOST_POWER_ERROR, MOST_TIME_ERROR
from pfo_fs.planner import Measurement, Plan, Profile

_HOPE_FOR_POWER = 0.5
"""Powers may be better than estimated by this share of what times may be: slow energy counters hardly tell them."""
_CAREFUL = 0.3
"""Plans count this many standard errors more time than estimated at clocks below the highest one."""


@dataclass(frozen=True)
class Offer:
    """Which clocks that were not measured a profile includes.

    Attributes:
        time_error, power_error: The largest relative errors of their estimates.
        lowest: The lowest clock, as a share of the lowest one that was measured for any instruction.
        next_below: Whether the next clock below those that were measured of an instruction is included, whatever its
            errors. Where a GPU offers few clocks, these are large, and no other clock would ever be tried.
    """

    time_error: float = MOST_TIME_ERROR
    power_error: float = MOST_POWER_ERROR
    lowest: float = 1.0
    next_below: bool = False


SURE = Offer()
"""What plans use."""
WIDE = Offer(time_error=0.06, power_error=0.2, lowest=0.6, next_below=True)
"""What plans try, to find out."""
EVERYTHING = Offer(time_error=math.inf, power_error=math.inf)


def estimated_profile(
    samples: Samples,
    kinds: Sequence[Kind],
    clocks_mhz: Mapping[int, Sequence[int]],
    source: str,
    elsewhere: Mapping[Kind, Mapping[int, Point]] | None = None,
    offer: Offer = SURE,
) -> Profile:
    """Returns the estimates at the measured clocks, and at the others on offer that are known well enough.

    Where other jobs have a part in the estimates, only clocks near those that this job has measured (`is_checked`).

    The spreads of the profile are the standard errors of its values.

    Args:
        samples: What was measured.
        kinds: The kinds of instructions that the job runs.
        clocks_mhz: For each stage, the clocks that its GPUs offer.
        source: Text that messages begin with.
        elsewhere: Points of other instructions that may be alike.
        offer: Which clocks are included that were not measured.
    """
    measured = {kind: samples.timed(kind) for kind in kinds if samples.curve(kind)}
    lowest_mhz = offer.lowest * min((min(curve) for curve in measured.values()), default=0)
    wanted = {kind: [mhz for mhz in clocks_mhz[kind[0]] if mhz >= lowest_mhz] for kind in measured}
    unchecked = bool(elsewhere) or samples.borrows
    table: dict[Kind, list[Measurement]] = {}
    for group in fit_curves(measured, wanted, elsewhere):
        for kind, estimates in group.table().items():
            below = max((mhz for mhz in wanted[kind] if mhz < min(measured[kind])), default=0)
            table[kind] = [
                Measurement(
                    mhz,
                    one.time_s,
                    one.power_w * one.time_s,
                    one.time_error * one.time_s,
                    one.power_error * one.power_w * one.time_s,
                    measured[kind][mhz].count if mhz in measured[kind] else 1,
                )
                for mhz, one in estimates.items()
                if (
                    mhz in measured[kind]
                    or (one.time_error <= offer.time_error and one.power_error <= offer.power_error)
                    or (offer.next_below and mhz == below)
                )
                and (not unchecked or mhz == max(estimates) or is_checked(measured[kind], mhz, one.time_s))
            ]
    return Profile(table, source)


def careful(profile: Profile) -> Profile:
    """Returns a profile in which clocks below the highest take longer by their standard error.

    A planner prefers the clocks whose time was estimated too short, so plans from plain estimates are too slow.
    """
    table = {}
    for kind, rows in profile.measurements.items():
        top_mhz = max(row.frequency_mhz for row in rows)
        table[kind] = [
            row if row.frequency_mhz == top_mhz else replace(row, time_s=row.time_s + _CAREFUL * row.time_spread_s)
            for row in rows
        ]
    return Profile(table, profile.source)


def hopeful(profile: Profile, errors: float) -> Profile:
    """Returns a profile in which clocks below the highest are faster and draw less by so many standard errors.

    A plan from it uses the clocks of which it is not known whether they are worth it, and so measures them.
    """
    table = {}
    for kind, rows in profile.measurements.items():
        top_mhz = max(row.frequency_mhz for row in rows)
        table[kind] = [row if row.frequency_mhz == top_mhz else _hopeful(row, errors) for row in rows]
    return Profile(table, profile.source)


def _hopeful(row: Measurement, errors: float) -> Measurement:
    time_s = row.time_s - min(errors * row.time_spread_s, row.time_s / 2)
    power_w = (row.energy_j - min(errors * _HOPE_FOR_POWER * row.energy_spread_j, row.energy_j / 2)) / row.time_s
    return replace(row, time_s=time_s, energy_j=power_w * time_s)


def usage_of(plan: Plan) -> dict[tuple[Kind, int], float]:
    """Returns the share of each kind's runs that a plan runs at a clock."""
    runs = _runs_of(plan)
    totals: Counter[Kind] = Counter()
    for (kind, _), count in runs.items():
        totals[kind] += count
    return {(kind, mhz): count / totals[kind] for (kind, mhz), count in runs.items()}


def _runs_of(plan: Plan) -> Counter[tuple[Kind, int]]:
    instructions = plan.problem.pipeline.instructions
    return Counter(
        ((instruction.stage, instruction.name), mhz)
        for instruction, mhz in zip(instructions, plan.frequencies_mhz, strict=True)
    )
