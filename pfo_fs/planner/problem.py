"""What is to be planned: a pipeline, a profile, and what waiting and clock changes cost."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

from pfo_fs.arrays import np
from pfo_fs.errors import ConfigError, PlanError
from pfo_fs.planner.clock_table import ClockTable
from pfo_fs.planner.longest_paths import LongestPaths, Neighbours, neighbours
from pfo_fs.planner.pipeline import Pipeline
from pfo_fs.planner.profile import Profile
from pfo_fs.planner.scenario_model import Played, Scenarios
from pfo_fs.planner.switch_costs import SwitchCosts

_PLAUSIBLE_W = (10.0, 3000.0)
_MIN_USEFUL = 3
"""If at least this many clocks were measured and fewer are useful, the profile shows noise, not a trade-off."""


@dataclass(frozen=True)
class Problem:
    """One iteration of one pipeline, and the options of its instructions.

    Attributes:
        profile: Measurements of every (stage, instruction) of the pipeline, per GPU.
        blocking_power_w: Power of one GPU that waits, in W; of all GPUs of the pipeline: `waiting_power_w`.
        overhead_s: Time that an iteration takes beyond its DAG (optimizer step, gradient reduction), in s.
        switch_costs: What it costs when two instructions in a row run at different clocks.
        gpus_per_rank: Number of GPUs that share a rank's work (tensor parallelism); energies and powers are sums over
            them.
        wider: A profile with more clocks. New plans use only the clocks of `profile`; older plans may hold these too.

    Raises:
        PlanError: The profile has another number of stages, or lacks an instruction that the pipeline runs.
        ConfigError: A number is out of range.
    """

    pipeline: Pipeline
    profile: Profile
    blocking_power_w: float
    overhead_s: float = 0.0
    switch_costs: SwitchCosts = field(default_factory=SwitchCosts)
    gpus_per_rank: int = 1
    wider: Profile | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        for name in ("blocking_power_w", "overhead_s"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be a finite number, 0 or more")
        if self.gpus_per_rank < 1:
            raise ConfigError(f"gpus_per_rank is {self.gpus_per_rank}; a rank has at least one GPU")
        if self.pipeline.num_stages != self.profile.num_stages:
            both = f"{self.profile.num_stages} stages, but the pipeline has {self.pipeline.num_stages}"
            raise PlanError(f"{self.profile.source}: column stage: there are {both}")
        for stage, name in sorted({(i.stage, i.name) for i in self.pipeline.instructions}):
            if (stage, name) not in self.profile.measurements:
                there = ", ".join(of for at, of in self.profile.measurements if at == stage) or "nothing"
                raise PlanError(
                    f"{self.profile.source}: column instruction: stage {stage} has no rows for {name}, which the "
                    f"{self.pipeline.name} pipeline runs there; it has {there}"
                )

    @cached_property
    def paths(self) -> LongestPaths:
        """The longest paths through the DAG."""
        return LongestPaths(self.pipeline.topological, self.pipeline.edges)

    @cached_property
    def before(self) -> Neighbours:
        """For each node, the nodes that it waits for, as (node, delay in s)."""
        return neighbours(len(self.pipeline.instructions), self.pipeline.edges)[0]

    @property
    def waiting_power_w(self) -> float:
        """Power of all GPUs of the pipeline while they wait, in W; `blocking_power_w` is that of one GPU."""
        return self.blocking_power_w * len(self.pipeline.orders) * self.gpus_per_rank

    @cached_property
    def warnings(self) -> tuple[str, ...]:
        """Doubts about the profile, as text for the user."""
        found = []
        for (stage, name), useful in zip(self.table.kinds, self.table.useful, strict=True):
            powers_w = sorted(m.energy_j / m.time_s for m in self.profile.measurements[stage, name])
            middle_w = powers_w[len(powers_w) // 2]
            if not _PLAUSIBLE_W[0] <= middle_w <= _PLAUSIBLE_W[1]:
                found.append(
                    f"{self.profile.source}: {name} of stage {stage} draws {middle_w:,.4g} W, energy over time; are "
                    "these joules and seconds of one GPU?"
                )
            elif middle_w < self.blocking_power_w:
                found.append(
                    f"{self.profile.source}: {name} of stage {stage} draws {middle_w:.4g} W, less than a GPU that "
                    f"waits ({self.blocking_power_w:.4g} W); is the blocking power that of these GPUs?"
                )
            measured, left = len(self.profile.measurements[stage, name]), len(useful)
            if left < _MIN_USEFUL <= measured:
                found.append(
                    f"{self.profile.source}: of {measured} clocks measured for {name} of stage {stage} only {left} "
                    "are useful, all others take more time and more energy: the profile is too noisy to plan with; "
                    "average more rows per clock"
                )
        return tuple(found)

    def iteration_time_s(self, times_s: Sequence[float]) -> float:
        """Returns the iteration time from each node's duration, both in s; all nodes begin as early as possible."""
        return float(self.paths.ends(np.array(times_s)[:, None]).ends_s.max()) + self.overhead_s

    @cached_property
    def table(self) -> ClockTable:
        """What each kind of instruction does at each clock."""
        return ClockTable(self)

    @cached_property
    def alike(self) -> Scenarios:
        """Iterations that are all alike, with the profile's times, as one scenario."""
        return Scenarios(self, self.table.full_s[self.table.kind][None, :, None], [0])

    def played(self, frequencies_mhz: Sequence[int]) -> Played:
        """Returns time and energy of iterations that are all alike, at one clock in MHz for each node.

        Raises:
            PlanError: A clock was not measured for its instruction.
        """
        return self.alike.play(self.alike.numbers([frequencies_mhz]))

    def _of_nodes(self, clocks: Sequence[int]) -> list[int]:
        """For each node, the clock of its kind in MHz."""
        return [self.table.mhz[clocks[kind]] for kind in self.table.kind.tolist()]

    @cached_property
    def cheapest_mhz(self) -> list[int]:
        """For each node, the clock at which it takes least energy beyond waiting."""
        return self._of_nodes([clocks[-1] for clocks in self.table.useful])

    @cached_property
    def fastest_mhz(self) -> list[int]:
        """For each node, its clock in the plan with the shortest iteration.

        Where clock changes cost something, it is the shortest of three: every instruction at its fastest clock if the
        drivers can make the changes, each rank at its fastest single clock, every instruction at its max clock. In
        a measured profile the highest clock is often not the fastest, so none of the three is always the shortest.
        """
        every = self._of_nodes(self.table.options[:, 0].tolist())
        if self.switch_costs.none:
            return every
        several = [self._of_nodes(self.table.options.max(axis=1).tolist()), *self._fastest_without_changes()]
        if self.played(every).switch_load.fits:
            several.insert(0, every)
        return min(several, key=lambda clocks_mhz: self.played(clocks_mhz).mean_s)

    def _fastest_without_changes(self) -> list[list[int]]:
        """Each rank at the one clock at which its instructions take least time; empty if a rank has no common clock."""
        offered_s = np.where(self.table.offered, self.table.time_s, np.inf)[self.table.kind]
        clocks_mhz: list[int] = []
        for first, end in pairwise(self.pipeline.first_nodes):
            total_s = offered_s[first:end].sum(axis=0)
            if not np.isfinite(total_s).any():
                return []
            clocks_mhz += [self.table.mhz[int(total_s.argmin())]] * (end - first)
        return [clocks_mhz]
