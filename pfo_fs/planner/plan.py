"""A plan: one clock for every instruction, with its time and energy, and how far it can be from the best plan."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise

from pfo_fs.models import FrequencySchedule
from pfo_fs.planner.pipeline import Instruction
from pfo_fs.planner.problem import Problem
from pfo_fs.planner.scenario_model import Played
from pfo_fs.planner.switch_costs import SwitchLoad, reason


@dataclass(frozen=True)
class Plan:
    """A clock for every instruction of one iteration.

    All figures are computed from the problem's profile along its DAG, not copied from the solver.

    Attributes:
        frequencies_mhz: Clock of each node (`problem.pipeline.instructions`), in MHz.
        solver: Name of the solver that found the plan.
        deadline_s: The longest iteration time that was allowed, in s.
        straggler_s: The iteration time in s that the pipeline has to wait for in any case, or None.
        lower_bound_j: Lower bound of the energy of all plans within the deadline, in J; None if it was not computed.
        seconds: Time that the solver needed, in s.
        free: Clock changes of the plan that ignores their cost; only for solver "lp".
        limited: Whether drivers could make no more clock changes; only for solver "lp".
    """

    problem: Problem = field(repr=False)
    frequencies_mhz: tuple[int, ...] = field(repr=False)
    solver: str
    deadline_s: float
    straggler_s: float | None = None
    lower_bound_j: float | None = None
    seconds: float = 0.0
    free: SwitchLoad | None = None
    limited: bool = False

    @cached_property
    def _played(self) -> Played:
        return self.problem.played(self.frequencies_mhz)

    @cached_property
    def times_s(self) -> list[float]:
        """Duration of each node, in s."""
        times_s: list[float] = self._played.times_s[:, 0].tolist()
        return times_s

    @cached_property
    def starts_s(self) -> list[float]:
        """The earliest time at which each node can begin, in s."""
        starts_s: list[float] = (self._played.ends_s - self._played.times_s)[:, 0].tolist()
        return starts_s

    @cached_property
    def changes(self) -> list[int]:
        """Nodes before which their rank changes its clock."""
        nodes: list[int] = self.problem.alike.changed(self._played.clocks)[:, 0].nonzero()[0].tolist()
        return nodes

    @property
    def iteration_time_s(self) -> float:
        """Duration of one iteration, in s."""
        return self._played.mean_s

    @property
    def energy_j(self) -> float:
        """Energy of all GPUs of the pipeline over one iteration, waiting included, in J.

        With a straggler, the iteration lasts at least as long as the straggler's.
        """
        return self.energy_over(max(self.iteration_time_s, self.straggler_s or 0.0))

    def energy_over(self, seconds: float) -> float:
        """The energy in J if the next iteration begins `seconds` after this one began (Perseus, SOSP'24, section 3.2).

        Instructions take the measured energy; in the rest of the iteration, GPUs wait at the blocking power.
        """
        return self._played.effective_j + self.problem.waiting_power_w * seconds

    @property
    def switch_load(self) -> SwitchLoad:
        """What the clock changes cost."""
        return self._played.switch_load

    @property
    def switching(self) -> str:
        """Why the plan changes clocks as often as it does, in one line; empty where the solver does not say."""
        costs = self.problem.switch_costs
        return reason(costs, self.switch_load, self.free, self.limited) if self.solver == "lp" else ""

    @property
    def average_power_w(self) -> float:
        """Mean power of all GPUs of the pipeline, in W."""
        return self.energy_j / max(self.iteration_time_s, self.straggler_s or 0.0)

    @property
    def gap(self) -> float | None:
        """Upper limit of how far the energy is above the least possible, as a share of the least; None if unknown.

        The least possible is that of all plans within the deadline if clock changes cost nothing.
        """
        if self.lower_bound_j is None:
            return None
        return max(0.0, self.energy_j / self.lower_bound_j - 1.0)

    @property
    def gap_text(self) -> str:
        """The gap as the end of a line about the plan; empty if unknown."""
        return "" if self.gap is None else f", at most {self.gap:.2%} above the least possible"

    @cached_property
    def critical(self) -> list[int]:
        """Nodes of one longest path, in order: if one of them took longer, so would the iteration."""
        problem, starts = self.problem, self.starts_s
        ends = [start + time_s for start, time_s in zip(starts, self.times_s, strict=True)]
        node = max(range(len(ends)), key=lambda n: ends[n])
        path = [node]
        while problem.before[node] and starts[node] > 0:
            node = max(problem.before[node], key=lambda edge: ends[edge[0]] + edge[1])[0]
            path.append(node)
        return path[::-1]

    def orders(self) -> list[list[tuple[Instruction, int]]]:
        """For each rank, its instructions and their clocks in MHz, in order."""
        pairs = list(zip(self.problem.pipeline.instructions, self.frequencies_mhz, strict=True))
        return [pairs[first:end] for first, end in pairwise(self.problem.pipeline.first_nodes)]

    def schedules(self) -> list[FrequencySchedule]:
        """One schedule per rank of the pipeline, as training runs it; with stages if the rank holds several."""
        result = []
        for rank, order in enumerate(self.orders()):
            stages = [instruction.stage for instruction, _ in order]
            result.append(
                FrequencySchedule(
                    rank=rank,
                    frequencies=[(instruction.name, mhz) for instruction, mhz in order],
                    stages=stages if len(set(stages)) > 1 else None,
                )
            )
        return result

    def summary(self) -> dict[str, float | int | str | None]:
        """The figures by name; times in s, energies in J, power in W."""
        return {
            "solver": self.solver,
            "deadline_s": self.deadline_s,
            "straggler_s": self.straggler_s,
            "iteration_time_s": self.iteration_time_s,
            "energy_j": self.energy_j,
            "average_power_w": self.average_power_w,
            "lower_bound_j": self.lower_bound_j,
            "gap": self.gap,
            "clock_changes": len(self.changes),
            "driver_calls_per_s": self.switch_load.calls_per_s,
            "switching": self.switching,
            "seconds": self.seconds,
        }

    def replace(self, **changes: object) -> Plan:
        """Returns a copy with other fields."""
        return replace(self, **changes)  # type: ignore[arg-type]
