"""How training on a kind of GPU follows the clock, as it was published, or as a job has measured it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from pfo_fs.arrays import np
from pfo_fs.device.simulated.physics import AT_LIMIT, GpuModel, like
from pfo_fs.planner import Measurement, Profile

_CLOCKS, _LOWEST = 40, 0.42
"""Plans choose from at most 40 clocks, spread over those above 0.42 of the highest one: no plan for an A100 goes below
600 of its 1,410 MHz, where time grows faster than power falls."""
_MEASURED, _MEASURED_TO = 3, 0.75
"""A job's own curves count where each instruction was measured at three clocks, one of them at most 3/4 of the highest:
fewer say little of what lower clocks save."""


class Curves(NamedTuple):
    """How training on a kind of GPU follows the clock.

    Attributes:
        rows: Each instruction at the same clocks, the highest first; at the highest it takes 1 s.
    """

    rows: Mapping[str, Sequence[Measurement]]
    blocking_power_w: float

    @property
    def clocks_mhz(self) -> list[int]:
        """The clocks, the highest first."""
        return [one.frequency_mhz for one in next(iter(self.rows.values()))]

    @classmethod
    def of_model(cls, model: GpuModel, names: set[str], in_memory: float = 0.0) -> Curves:
        """Returns the published curves; the share `in_memory` of what follows the clock waits for memory instead."""
        offered = [mhz for mhz in model.clocks_mhz if mhz >= _LOWEST * model.clocks_mhz[0]]
        every = -(-len(offered) // _CLOCKS)
        rows: dict[str, list[Measurement]] = {}
        for name in names:
            curve = model.coefficients(name)
            curve = curve._replace(a=curve.a * (1 - in_memory))
            times_s = {mhz: curve.time_s(mhz) / curve.time_s(curve.top_mhz) for mhz in offered[::every]}
            rows[name] = [Measurement(mhz, time_s, time_s * curve.power_w(mhz)) for mhz, time_s in times_s.items()]
        return cls(rows, model.blocking_power_w)

    @classmethod
    def at_limit(cls, model: GpuModel, names: set[str]) -> Curves | None:
        """Returns what was published of a training on GPUs at their power limit; None for kinds without one."""
        of_kind, top_mhz = AT_LIMIT.get(model.name, {}), model.clocks_mhz[0]
        rows = {
            (0, name): [Measurement(round(share * top_mhz), *of) for share, *of in of_kind[like(name)]]
            for name in names
            if of_kind
        }
        return cls.of_profile(Profile(rows), model.blocking_power_w) if rows else None

    @classmethod
    def of_profile(cls, profile: Profile, blocking_power_w: float) -> Curves | None:
        """Returns means over stages of what was measured, interpolated between clocks; None if too little was."""
        top_mhz = max(of[0].frequency_mhz for of in profile.measurements.values())
        points: dict[str, dict[int, list[tuple[float, float]]]] = defaultdict(lambda: defaultdict(list))
        for (_, name), of in profile.measurements.items():
            for one in of if of[0].frequency_mhz == top_mhz else ():
                points[name][one.frequency_mhz].append((one.time_s / of[0].time_s, one.energy_j / of[0].time_s))
        lowest_mhz = max(map(min, points.values()))
        if lowest_mhz > _MEASURED_TO * top_mhz or min(map(len, points.values())) < _MEASURED:
            return None
        clocks_mhz = np.unique(np.linspace(lowest_mhz, top_mhz, _CLOCKS).round().astype(int))[::-1].tolist()
        rows: dict[str, list[Measurement]] = {}
        for name, known in points.items():
            columns = np.array([np.mean(known[mhz], axis=0) for mhz in sorted(known)]).T
            of_clocks = (np.interp(clocks_mhz, sorted(known), column).tolist() for column in columns)
            rows[name] = [Measurement(*of) for of in zip(clocks_mhz, *of_clocks, strict=True)]
        return cls(rows, blocking_power_w)
