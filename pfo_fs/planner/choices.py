"""What is worth running: the options of an instruction, less those that cost both time and energy."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from pfo_fs.planner.profile import Measurement

MIN_OPTIONS = 3
"""Where more clocks than this were measured and fewer survive, the profile is noise rather than a trade-off."""


@dataclass(frozen=True)
class Choices:
    """The options of one kind of instruction, from the fastest to the one that costs least.

    Costs are *effective* energies: what an instruction takes beyond the blocking power that the GPU would burn in the
    same time anyway (Perseus, SOSP'24, section 3.2). They fall as times rise; whatever is slower and costs as much is
    not in the list.

    Attributes:
        frequencies_mhz: Clock of each option.
        times_s: Duration of each, rising.
        costs_j: Effective energy of each, falling.
        hull: Positions of the options on the lower convex hull, over which the linear program interpolates.
    """

    frequencies_mhz: tuple[int, ...]
    times_s: tuple[float, ...]
    costs_j: tuple[float, ...]
    hull: tuple[int, ...]

    def within(self, time_s: float) -> int:
        """The cheapest option that takes no longer than `time_s`, or -1."""
        return bisect_right(self.times_s, time_s) - 1


def choices_of(measurements: Sequence[Measurement], blocking_power_w: float, scale: float = 1.0) -> Choices:
    """Returns the options worth running.

    Args:
        measurements: Of one kind of instruction, at least one.
        blocking_power_w: Power of a GPU that waits, in W.
        scale: Number of GPUs that run the instruction together; costs are of all of them.
    """
    points = sorted(
        (m.time_s, (m.energy_j - blocking_power_w * m.time_s) * scale, m.frequency_mhz) for m in measurements
    )
    pareto: list[tuple[float, float, int]] = []
    for point in points:
        if not pareto or point[1] < pareto[-1][1]:
            pareto.append(point)
    hull: list[int] = []
    for position, (time_s, cost_j, _) in enumerate(pareto):
        while len(hull) >= 2 and _above(pareto[hull[-2]], pareto[hull[-1]], (time_s, cost_j)):
            hull.pop()
        hull.append(position)
    return Choices(
        tuple(mhz for _, _, mhz in pareto),
        tuple(time_s for time_s, _, _ in pareto),
        tuple(cost_j for _, cost_j, _ in pareto),
        tuple(hull),
    )


def _above(left: Sequence[float], middle: Sequence[float], right: Sequence[float]) -> bool:
    """Says whether `middle` lies on or above the line from `left` to `right`."""
    return (middle[1] - left[1]) * (right[0] - left[0]) >= (right[1] - left[1]) * (middle[0] - left[0])
