"""What is believed of each instruction at each clock, as the planner, the judge and the loads need it."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from pfo_fs.arrays import Array, np
from pfo_fs.autotune.clock_curves import ClockCurves, Estimate, fit_curves
from pfo_fs.autotune.job_layout import Kind
from pfo_fs.autotune.load_rows import Ratios
from pfo_fs.autotune.samples import Samples
from pfo_fs.planner import Measurement, Profile

LOWEST = 0.35
"""As a share of the highest clock: the energy of any instruction rises again below about this clock."""
_MOST_GRID_POINTS = 1200
"""At most 1,200 pairs of instruction and clock are estimated together: their covariance then takes 12 MB."""


class View(NamedTuple):
    """How to look at what is uncertain.

    Attributes:
        times: Times count as longer by this many standard errors, at clocks below the highest.
        powers: Powers count as higher by this many standard errors.
        time_error, power_error: Clocks that were not measured are left out if an estimate's relative error is larger.
    """

    times: float = 0.0
    powers: float = 0.0
    time_error: float = 0.02
    power_error: float = 0.06


EXPECTED = View()
"""The view of plans that are to stay: clocks that were measured, or are known to 2 % in time and 6 % in power."""
CAUTIOUS = View(times=2.0, time_error=math.inf, power_error=math.inf)
"""The view of plans that find out where there is slack, such as the first plan: they use clocks that are hardly known,
but are surely in time. Before low clocks were measured, times are as long as physics allows."""
HOPEFUL = View(times=-2.0, powers=-1.0, time_error=0.1, power_error=0.2)
"""The view of plans that find out whether clocks are better than expected: times by two standard errors, powers by one,
since energy counters tell powers slowly: a power stays uncertain for longer than it is interesting."""
EVERYTHING = View(time_error=math.inf, power_error=math.inf)
"""All clocks, as expected."""


class Curves:
    """The curves of all kinds of instructions of a job, at the clocks that GPUs offer to each stage."""

    def __init__(self, samples: Samples, kinds: Sequence[Kind], clocks_mhz: Mapping[int, Sequence[int]]) -> None:
        self._measured = {kind: samples.timed(kind) for kind in kinds if samples.curve(kind)}
        self._top_mhz = {kind: max(clocks_mhz[kind[0]]) for kind in kinds}
        wanted = {kind: self._offered(kind, clocks_mhz[kind[0]], len(kinds)) for kind in self._measured}
        self._groups = fit_curves(self._measured, wanted)
        self._table: dict[Kind, dict[int, Estimate]] = {}
        self._rows: dict[tuple[Kind, int], tuple[ClockCurves, int]] = {}
        for group in self._groups:
            self._table.update(group.table())
            self._rows.update({where: (group, row) for row, where in enumerate(group.where)})

    def _offered(self, kind: Kind, clocks_mhz: Sequence[int], kinds: int) -> list[int]:
        """The clocks to be estimated: those that are worth it, evenly thinned out if there are many."""
        useful = [mhz for mhz in sorted(clocks_mhz, reverse=True) if mhz >= LOWEST * self._top_mhz[kind]]
        return useful[:: math.ceil(len(useful) * kinds / _MOST_GRID_POINTS)]

    def ratios(self, kinds: Sequence[Kind]) -> Ratios:
        """Returns r for these kinds, in this order."""
        clocks = sorted({mhz for kind in kinds for mhz in self._table[kind]})
        logs, errors = np.zeros((len(kinds), len(clocks))), np.zeros((len(kinds), len(clocks)))
        for number, kind in enumerate(kinds):
            own = sorted(self._table[kind])
            top = self._table[kind][self._top_mhz[kind]]
            log = [math.log(self._table[kind][mhz].time_s / top.time_s) for mhz in own]
            logs[number] = np.interp(clocks, own, log)
            errors[number] = np.interp(clocks, own, [self._ratio_error(kind, mhz) for mhz in own])
        top_mhz = np.array([self._top_mhz[kind] for kind in kinds], float)
        return Ratios(np.array(clocks, float), logs, errors, top_mhz)

    def _ratio_error(self, kind: Kind, mhz: int) -> float:
        """The relative standard error of the time at a clock over the time at the highest clock."""
        group, row = self._rows[kind, mhz]
        _, top = self._rows[kind, self._top_mhz[kind]]
        covariance = group.times.covariance
        return math.sqrt(max(0.0, float(covariance[row, row] + covariance[top, top] - 2 * covariance[row, top])))

    def covariance_of(self, rows: Sequence[Mapping[tuple[Kind, int], float]], *, powers: bool = False) -> Array:
        """Returns the covariance of the errors of weighted sums of logarithms of times or powers.

        Errors of one fit are correlated; errors of different fits are not.

        Args:
            rows: For each sum, its derivative by the logarithm of each kind at each clock (MHz).
            powers: Whether the logarithms are of powers, not of times.
        """
        found: Array = np.zeros((len(rows), len(rows)))
        for group in self._groups:
            gradients = np.zeros((len(rows), len(group.where)))
            for number, shares in enumerate(rows):
                for where, share in shares.items():
                    own, place = self._rows.get(where, (None, 0))
                    if own is group:
                        gradients[number, place] += share
            found += gradients @ (group.powers if powers else group.times).covariance @ gradients.T
        return found

    def profile(self, source: str, view: View = EXPECTED) -> Profile:
        """Returns the estimates in the planner's form, as `view` sees them; messages begin with `source`."""
        table = {}
        for kind, estimates in self._table.items():
            measured, top_mhz = self._measured[kind], self._top_mhz[kind]
            table[kind] = [
                self._measurement(kind, mhz, one, view)
                for mhz, one in estimates.items()
                if mhz == top_mhz
                or mhz in measured
                or (self._ratio_error(kind, mhz) <= view.time_error and one.power_error <= view.power_error)
            ]
        return Profile(table, source)

    def _measurement(self, kind: Kind, mhz: int, one: Estimate, view: View) -> Measurement:
        top_mhz = self._top_mhz[kind]
        time_error, power_error = self._ratio_error(kind, mhz), one.power_error
        time_s, power_w = one.time_s, one.power_w
        if mhz != top_mhz:
            # Physics limits both: no instruction takes longer than its work at that clock, or less than at the highest.
            top_s = self._table[kind][top_mhz].time_s
            longest_s = max(time_s, top_s * top_mhz / mhz)
            time_s = min(longest_s, max(min(time_s, top_s), time_s * math.exp(view.times * time_error)))
            power_w *= math.exp(view.powers * power_error)
        return Measurement(mhz, time_s, power_w * time_s)
