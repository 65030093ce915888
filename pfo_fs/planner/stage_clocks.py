"""One clock for each stage: the best of many combinations, then improved one stage at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import permutations
from typing import Any

from pfo_fs.planner.columns import Columns
from pfo_fs.planner.problem import Problem

_CLIMBED_NODES = 20_000
"""The best combination is improved in pipelines of at most this many instructions."""
_REACH = 3
"""Number of clocks up and down that an improvement tries for one stage."""
_BATCH = 4_000_000
"""Instructions times combinations that are evaluated at once: about 100 MB."""
_SAVES = 1e-9
"""Relative: an improvement must save more than this."""


class StageClocks:
    """Finds the best clock for each stage of a problem; clock changes within a rank that holds several stages count.

    Attributes:
        clocks_mhz: For each stage, the clocks at which all of its instructions were measured, rising.
        columns: The problem with all measured clocks as options.
    """

    def __init__(self, problem: Problem) -> None:
        import numpy as np

        self._problem = problem
        self.columns = Columns(problem, problem.measured_by_kind)
        instructions = problem.pipeline.instructions
        self._stages: Any = np.array([instruction.stage for instruction in instructions])
        # For each stage, the times of its instructions by name and clock.
        self._times: list[dict[str, dict[int, float]]] = [{} for _ in range(problem.pipeline.num_stages)]
        for (stage, name), choices in problem.measured_by_kind.items():
            self._times[stage][name] = dict(zip(choices.frequencies_mhz, choices.times_s, strict=True))
        self.clocks_mhz = [sorted(set.intersection(*(set(t) for t in of.values()))) for of in self._times]

    def options(self, clocks_mhz: Sequence[Sequence[int]]) -> Any:
        """Returns assignments, as columns of options, for combinations of one clock in MHz per stage."""
        import numpy as np

        numbers: Any = np.array([[self.columns.clock_numbers[mhz] for mhz in row] for row in clocks_mhz]).T
        options: Any = np.zeros((len(self._stages) + 1, len(clocks_mhz)), int)
        options[:-1] = self.columns.option_at[self.columns.kind[:-1, None], numbers[self._stages]]
        return options

    def evaluate(self, clocks_mhz: Sequence[Sequence[int]]) -> tuple[Any, Any]:
        """Returns the effective energy in J and the iteration time in s of each combination."""
        import numpy as np

        size = max(1, _BATCH // len(self._stages))
        costs, times = [np.zeros(0)], [np.zeros(0)]
        for start in range(0, len(clocks_mhz), size):
            options = self.options(clocks_mhz[start : start + size])
            costs.append(self.columns.cost(options))
            times.append(
                self.columns.makespan(options, self._problem.switch_costs.stands_still_s) + self._problem.overhead_s
            )
        return np.concatenate(costs), np.concatenate(times)

    @cached_property
    def same(self) -> list[tuple[int, ...]]:
        """The combinations in which all stages have the same clock, by falling clock."""
        common = set.intersection(*(set(clocks) for clocks in self.clocks_mhz))
        return [(mhz,) * len(self.clocks_mhz) for mhz in sorted(common, reverse=True)]

    def best_same(self, deadline_s: float, straggler_s: float | None = None) -> tuple[int, ...] | None:
        """Returns the combination of `same` that takes least energy within the deadline, or None if all are slower.

        Args:
            deadline_s: The longest iteration time, in s.
            straggler_s: Iteration time of another pipeline that this one waits for, in s.
        """
        if not self.same:
            return None
        at, _ = self.cheapest(*self.evaluate(self.same), deadline_s, straggler_s)
        return None if at is None else self.same[at]

    @cached_property
    def _candidates(self) -> list[tuple[int, ...]]:
        """For every time that a forward can take, each stage at its slowest clock within that time; and `same`.

        The first is `ZeusPerStage` of the Perseus paper (SOSP'24, section 6.1). The same is done with the time of all
        instructions of a micro-batch together.
        """
        return list(dict.fromkeys([*self._balanced(), *self.same]))

    def _balanced(self) -> Iterator[tuple[int, ...]]:
        if not all(self.clocks_mhz):
            return
        forward = [of.get("forward") or next(iter(of.values())) for of in self._times]
        rows = [
            [{mhz: table[mhz] for mhz in clocks} for table, clocks in zip(forward, self.clocks_mhz, strict=True)],
            [
                {mhz: sum(table[mhz] for table in of.values()) for mhz in clocks}
                for of, clocks in zip(self._times, self.clocks_mhz, strict=True)
            ],
        ]
        for times_s in rows:
            for limit_s in sorted({seconds for row in times_s for seconds in row.values()}):
                yield tuple(_slowest_within(row, limit_s) for row in times_s)

    @cached_property
    def _evaluated(self) -> tuple[Any, Any]:
        return self.evaluate(self._candidates)

    @cached_property
    def shortest_s(self) -> float:
        """The shortest iteration time of the combinations that are tried, in s; infinite if there are none."""
        return float(self._evaluated[1].min()) if self._candidates else float("inf")

    def best(self, deadline_s: float, straggler_s: float | None = None) -> tuple[int, ...] | None:
        """Returns the combination found that takes least energy within the deadline, or None if all are slower.

        Args:
            deadline_s: The longest iteration time, in s.
            straggler_s: Iteration time of another pipeline that this one waits for, in s.
        """
        if not self._candidates:
            return None
        costs, times = self._evaluated
        at, energy_j = self.cheapest(costs, times, deadline_s, straggler_s)
        if at is None:
            return None
        best = self._candidates[at]
        if len(self._stages) > _CLIMBED_NODES or not all(self.clocks_mhz):
            return best
        better = True
        while better:
            better = False
            for moves in (list(self._moves(best)), list(self._trades(best))):
                at, moved_j = self.cheapest(*self.evaluate(moves), deadline_s, straggler_s)
                if at is not None and moved_j < energy_j - _SAVES * abs(energy_j):
                    best, energy_j, better = moves[at], moved_j, True
                    break
        return best

    def cheapest(
        self, costs_j: Any, times_s: Any, deadline_s: float, straggler_s: float | None
    ) -> tuple[int | None, float]:
        """Returns the position of the combination with least energy within the deadline, and its energy in J."""
        import numpy as np

        energies = costs_j + self._problem.waiting_power_w * np.maximum(times_s, straggler_s or 0.0)
        energies = np.where(times_s <= deadline_s, energies, np.inf)
        if not len(energies):
            return None, float("inf")
        at = int(energies.argmin())
        return (at, float(energies[at])) if np.isfinite(energies[at]) else (None, float("inf"))

    def _moves(self, clocks_mhz: Sequence[int]) -> Iterator[tuple[int, ...]]:
        """The combinations in which one stage has a clock a few steps up or down."""
        for stage, row in enumerate(self.clocks_mhz):
            at = row.index(clocks_mhz[stage])
            for mhz in row[max(0, at - _REACH) : at + _REACH + 1]:
                if mhz != clocks_mhz[stage]:
                    yield (*clocks_mhz[:stage], mhz, *clocks_mhz[stage + 1 :])

    def _trades(self, clocks_mhz: Sequence[int]) -> Iterator[tuple[int, ...]]:
        """The combinations in which one stage has the next higher clock and another one the next lower clock."""
        at = [row.index(mhz) for row, mhz in zip(self.clocks_mhz, clocks_mhz, strict=True)]
        for up, down in permutations(range(len(at)), 2):
            if at[up] + 1 < len(self.clocks_mhz[up]) and at[down] > 0:
                moved = list(clocks_mhz)
                moved[up], moved[down] = self.clocks_mhz[up][at[up] + 1], self.clocks_mhz[down][at[down] - 1]
                yield tuple(moved)


def _slowest_within(times_s: dict[int, float], limit_s: float) -> int:
    """The clock with the longest time within the limit, or the highest one."""
    within = [mhz for mhz, seconds in times_s.items() if seconds <= limit_s]
    return max(within, key=lambda mhz: times_s[mhz]) if within else max(times_s)
