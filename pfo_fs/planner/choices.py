"""The options of an instruction: all measured clocks, or only those that no other clock beats in time and energy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pfo_fs.planner.profile import Measurement

MIN_OPTIONS = 3
"""If at least this many clocks were measured and fewer remain as options, the profile shows noise, not a trade-off."""


@dataclass(frozen=True)
class Choices:
    """The options of one kind of instruction, by rising time.

    Costs are *effective* energies: the energy of an instruction beyond what a waiting GPU would take in the same time,
    at the blocking power (Perseus, SOSP'24, section 3.2). Where clock changes cost no time, an option that is slower
    and costs no less than another one is left out, so that costs fall as times rise. Where they cost time, such an
    option can save a change, so all options are kept.

    Attributes:
        frequencies_mhz: Clock of each option.
        times_s: Duration of each, rising.
        costs_j: Effective energy of each.
        hull: Positions of the options on the lower convex hull, from the fastest option to the one that costs least;
            the linear program interpolates between them.
    """

    frequencies_mhz: tuple[int, ...]
    times_s: tuple[float, ...]
    costs_j: tuple[float, ...]
    hull: tuple[int, ...]


def choices_of(
    measurements: Sequence[Measurement], blocking_power_w: float, scale: float = 1.0, every_clock: bool = False
) -> Choices:
    """Returns the options of one kind of instruction.

    Args:
        measurements: At least one, all of the same kind of instruction.
        blocking_power_w: Power of a GPU that waits, in W.
        scale: Number of GPUs that run the instruction together; costs are sums over them.
        every_clock: Keep options that another option beats in both time and cost.
    """
    points = sorted(
        (m.time_s, (m.energy_j - blocking_power_w * m.time_s) * scale, m.frequency_mhz) for m in measurements
    )
    least_j = float("inf")
    kept: list[tuple[float, float, int]] = []
    hull: list[int] = []
    for point in points:
        beaten = point[1] >= least_j
        if beaten and not every_clock:
            continue
        kept.append(point)
        if beaten:
            continue
        least_j = point[1]
        while len(hull) >= 2 and _above(kept[hull[-2]], kept[hull[-1]], point):
            hull.pop()
        hull.append(len(kept) - 1)
    return Choices(
        tuple(mhz for _, _, mhz in kept),
        tuple(time_s for time_s, _, _ in kept),
        tuple(cost_j for _, cost_j, _ in kept),
        tuple(hull),
    )


def _above(left: Sequence[float], middle: Sequence[float], right: Sequence[float]) -> bool:
    """Whether `middle` lies on or above the line from `left` to `right`."""
    return (middle[1] - left[1]) * (right[0] - left[0]) >= (right[1] - left[1]) * (middle[0] - left[0])
