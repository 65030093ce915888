"""Recent iterations of all pipelines of a job as scenarios: what clocks make of their times and energy.

Where instructions take unequal times, the mean length of the longest path is larger than the longest path of the mean
times. The difference grows with the number of paths that are about equally long, and a plan makes many paths so. So a
plan is judged by the mean over scenarios.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

from pfo_fs.arrays import Array, np
from pfo_fs.errors import ConfigError, PlanError
from pfo_fs.planner.clock_table import ClockTable
from pfo_fs.planner.longest_paths import LongestPaths
from pfo_fs.planner.switch_costs import SwitchLoad, queue_s

if TYPE_CHECKING:
    from pfo_fs.planner.problem import Problem

Clocks = Sequence[Sequence[int]]
"""For each group of pipelines, the clock of each node, in MHz."""

_TOLERANCE_S = 1e-9
"""A run of one clock may be too short by this much."""
_RUN_MARGIN = 1.05
"""A run of one clock lasts this many times as long as drivers need, so that the plan also fits other iterations."""


@dataclass(frozen=True)
class Played:
    """All scenarios at some clocks.

    Attributes:
        clocks: The clocks, as positions, (nodes, groups).
        times_s: Durations in s, (nodes, columns); a column is a pipeline of an iteration.
        ends_s: When nodes end, in s, (nodes, columns).
        spans_s: Makespan of each pipeline in s, (iterations, pipelines).
        mean_s: Mean iteration time in s, with the overhead.
        effective_j: Mean energy of an iteration beyond that of waiting, changes included, in J.
        energy_j: Mean energy of an iteration over all pipelines, in J.
    """

    clocks: Array
    times_s: Array
    ends_s: Array
    spans_s: Array
    mean_s: float
    effective_j: float
    energy_j: float
    switch_load: SwitchLoad

    @property
    def violations(self) -> int:
        """Number of hosts whose driver is overloaded and of runs of one clock that are too short."""
        return len(self.switch_load.overloaded) + self.switch_load.too_short


class Scenarios:
    """Recent iterations of all pipelines of a job: how long each instruction takes at max clocks.

    Args:
        problem: One pipeline with its delays and overhead. Of its profile, only ratios of times and powers count.
        full_s: Durations in s at max clocks, (iterations, nodes, pipelines).
        groups: For each pipeline the number of its group, from 0 on: pipelines of a group run the same clocks.

    Raises:
        ConfigError: The shape or the groups are wrong, or a duration is infinite or not above zero.
    """

    def __init__(self, problem: Problem, full_s: Array, groups: Sequence[int]) -> None:
        full = np.asarray(full_s, float)
        nodes = len(problem.pipeline.instructions)
        if full.ndim != 3 or full.shape[1] != nodes or full.shape[2] != len(groups) or not full.size:
            raise ConfigError(
                f"full_s has shape {full.shape}, not (iterations, {nodes} nodes, {len(groups)} pipelines)"
            )
        if not (np.isfinite(full) & (full > 0)).all():
            raise ConfigError("full_s holds a duration that is infinite or not above zero")
        if sorted(set(groups)) != list(range(max(groups) + 1)):
            raise ConfigError(f"groups are {list(groups)}; number them from 0 on without gaps")
        self.problem, self.full_s = problem, full
        self.iterations, self.nodes, self.pipelines = full.shape
        self.groups = np.array(groups)
        self.count = int(max(groups)) + 1
        self.group_of = np.tile(self.groups, self.iterations)
        self.durations_s = np.ascontiguousarray(full.transpose(1, 0, 2)).reshape(nodes, -1)
        self.members = (self.groups[:, None] == np.arange(self.count)).astype(float)
        self.waiting_power_w = problem.waiting_power_w * self.pipelines
        self.run_margin = 1.0

    @property
    def table(self) -> ClockTable:
        """What each kind of instruction does at each clock."""
        return self.problem.table

    @cached_property
    def _factors(self) -> Array:
        """Durations at max clocks as multiples of those in the profile, (nodes, columns)."""
        return self.durations_s / self.table.full_s[self.table.kind][:, None]

    @cached_property
    def shortest_s(self) -> Array:
        """The shortest run at each clock, in s: [0] begun by a change up, [1] by a change down, (2, clocks)."""
        costs = self.problem.switch_costs
        found = np.array([[costs.shortest_run_s(down, mhz) for mhz in self.table.mhz] for down in (False, True)])
        return found

    @property
    def paths(self) -> LongestPaths:
        """The longest paths through the DAG."""
        return self.problem.paths

    @cached_property
    def busy_s(self) -> Array:
        """Mean duration of each node at its max clock, summed over the pipelines of a group, (nodes, groups)."""
        return self.by_group(self.durations_s)

    def recombined(self, count: int, seed: int = 0) -> Scenarios:
        """Returns these scenarios and further ones, which take each micro-batch from an iteration drawn by chance.

        A plan for few iterations uses up slack that other iterations do not have. The recombined scenarios stand for
        those, if durations differ only by what a micro-batch holds. The result is the same in each call.

        Args:
            seed: Who judges plans gives another seed than the planner, and so has iterations that no plan was made for.
        """
        batches = np.array([instruction.microbatch for instruction in self.problem.pipeline.instructions])
        shape = count, int(batches.max()) + 1, self.pipelines
        chosen = np.random.default_rng(seed).integers(0, self.iterations, shape)[:, batches]
        further = np.take_along_axis(self.full_s, chosen, axis=0)
        found = Scenarios(self.problem, np.concatenate([self.full_s, further]), self.groups.tolist())
        found.run_margin = _RUN_MARGIN
        return found

    def by_group(self, values: Array) -> Array:
        """Means over iterations, summed over the pipelines of each group: (nodes, columns) to (nodes, groups)."""
        return values.reshape(len(values), self.iterations, self.pipelines).mean(axis=1) @ self.members

    # ---- clocks

    @cached_property
    def max_clocks(self) -> Array:
        """All nodes at max clocks, as positions, (nodes, groups)."""
        return self.table.max_clock[self.table.kind][:, None].repeat(self.count, axis=1)

    def numbers(self, clocks: Clocks | None) -> Array:
        """Returns clocks as positions, (nodes, groups); None: the highest.

        Raises:
            PlanError: A clock was not measured for its instruction.
        """
        if clocks is None:
            return self.max_clocks
        found = np.array([[self.table.number.get(int(mhz), -1) for mhz in row] for row in clocks]).T
        if found.shape != (self.nodes, self.count):
            raise PlanError(f"clocks have shape {found.T.shape}, not ({self.count} groups, {self.nodes} nodes)")
        unknown = (found < 0) | np.isinf(self.table.ratio[self.table.kind[:, None], found])
        for node, group in zip(*unknown.nonzero(), strict=True):
            instruction, source = self.problem.pipeline.instructions[node], self.problem.profile.source
            raise PlanError(f"{source}: {instruction} was not measured at {clocks[group][node]} MHz")
        return found

    def offered(self, clocks: Clocks) -> Array:
        """Returns the offered clocks that are nearest to some clocks, as positions, (nodes, groups)."""
        wanted = np.array(clocks, float).T
        found = np.empty(wanted.shape, int)
        for kind, offered in enumerate(self.table.offered):
            own = np.flatnonzero(offered)
            rows = self.table.kind == kind
            off = np.array(self.table.mhz)[own] - wanted[rows][:, :, None]
            found[rows] = own[np.abs(off).argmin(axis=2)]
        return found

    def mhz(self, numbers: Array) -> list[list[int]]:
        """Returns clocks in MHz for each group and node, from positions."""
        return [[self.table.mhz[number] for number in row] for row in numbers.T.tolist()]

    def changed(self, numbers: Array) -> Array:
        """Whether the rank changes its clock before each node, (nodes, groups)."""
        changed = np.zeros(numbers.shape, bool)
        changed[1:] = numbers[1:] != numbers[:-1]
        changed[list(self.problem.pipeline.first_nodes[:-1])] = False
        return changed

    # ---- what clocks make of the scenarios

    def play(self, numbers: Array) -> Played:
        """Returns times and energy at clocks, given as positions."""
        times_s = self._factors * self.table.time_s[self.table.kind[:, None], numbers][:, self.group_of]
        ends_s = self.paths.ends(times_s).ends_s
        spans_s = ends_s[self.paths.last_nodes].max(axis=0).reshape(self.iterations, self.pipelines)
        mean_s = float(spans_s.max(axis=1).mean()) + self.problem.overhead_s
        load = self._switch_load(numbers, times_s, ends_s - times_s, mean_s)
        effective_j = float((self.busy_s * self.table.cost_w[self.table.kind[:, None], numbers]).sum()) + load.energy_j
        energy_j = effective_j + self.waiting_power_w * mean_s
        return Played(numbers, times_s, ends_s, spans_s, mean_s, effective_j, energy_j, load)

    def _switch_load(self, numbers: Array, times_s: Array, starts_s: Array, mean_s: float) -> SwitchLoad:
        """What the clock changes cost; the hosts of each group are counted apart."""
        costs, spans = self.problem.switch_costs, list(pairwise(self.problem.pipeline.first_nodes))
        changed = self.changed(numbers)
        if costs.none:
            return SwitchLoad(int(changed.sum()))
        energy_j = 0.0
        starts = starts_s.reshape(self.nodes, self.iterations, self.pipelines).mean(axis=1)
        starts = starts @ (self.members / self.members.sum(axis=0))
        hosts = costs.hosts_of(len(spans))
        calls_per_s, too_short = 0.0, 0
        overloaded = []
        for group in range(self.count):
            own, begin_s = numbers[:, group], starts[:, group]
            by_rank: list[Array] = [first + np.flatnonzero(changed[first:end, group]) for first, end in spans]
            # An iteration begins with the clocks at the end of the iteration before.
            calls = [len(at) + int(own[a] != own[b - 1]) for at, (a, b) in zip(by_rank, spans, strict=True)]
            wrong_s = np.zeros(self.nodes)
            for number, host in enumerate(hosts):
                on_host = sum(calls[rank] for rank in host)
                if on_host > costs.most_changes(mean_s) + _TOLERANCE_S:
                    overloaded.append(group * len(hosts) + number)
                busy = on_host * costs.driver_time_s / mean_s
                calls_per_s = max(calls_per_s, on_host * costs.calls / mean_s)
                for rank in host:
                    others = busy - calls[rank] * costs.driver_time_s / mean_s
                    wrong_s[spans[rank][0] : spans[rank][1]] = costs.wrong_clock_s + queue_s(costs, others, busy)
            for at, (first, _) in zip(by_rank, spans, strict=True):
                begins = np.concatenate([[first], at])
                lowered = np.concatenate([[False], own[at] < own[at - 1]])
                shortest_s = self.shortest_s[lowered.astype(int), own[begins]]
                too_short += int((np.diff(begin_s[begins]) < self.run_margin * shortest_s[:-1] - _TOLERANCE_S).sum())
            at = np.flatnonzero(changed[:, group])
            if wrong_s.any() and len(at):
                energy_j += self._wrong_clock_j(own, at, wrong_s[at], times_s, starts_s, self.group_of == group)
        return SwitchLoad(int(changed.sum()), energy_j, calls_per_s, tuple(overloaded), too_short)

    def _wrong_clock_j(
        self, own: Array, at: Array, wrong_s: Array, times_s: Array, starts_s: Array, columns: Array
    ) -> float:
        """Energy in J of the changes before the nodes `at`, around which GPUs have the higher clock for `wrong_s`."""
        waiting_s = starts_s[at][:, columns] - starts_s[at - 1][:, columns] - times_s[at - 1][:, columns]
        seconds = np.maximum(0.0, wrong_s[:, None] - np.maximum(0.0, waiting_s))
        before, now = own[at - 1], own[at]
        lower = np.where(before < now, at - 1, at)
        high_s, more_j = self.table.wrong(self.table.kind[lower], np.minimum(before, now), np.maximum(before, now))
        share = np.minimum(seconds / high_s[:, None], self._factors[lower][:, columns])
        energy_j: float = (share * more_j[:, None]).sum() / self.iterations
        return float(energy_j)

    def change_j(self, node: Array, left: Array, right: Array) -> Array:
        """Returns the energy in J that changes from `left` to `right` before nodes take, per pipeline."""
        table, wrong_s = self.table, self.problem.switch_costs.wrong_clock_s
        if not wrong_s:
            return np.zeros(len(node))
        lower = table.kind[np.where(left < right, node - 1, node)]
        high_s, more_j = table.wrong(lower, np.minimum(left, right), np.maximum(left, right))
        return (left != right) * wrong_s / high_s * more_j

    # ---- answers for clocks in MHz

    def spans_s(self, clocks: Clocks | None = None) -> Array:
        """Returns each pipeline's own makespan in s, without the overhead, (iterations, pipelines)."""
        return self.play(self.numbers(clocks)).spans_s

    def iteration_times_s(self, clocks: Clocks | None = None) -> Array:
        """Returns iteration times in s, with the overhead: all pipelines wait for the last one, (iterations,)."""
        return self.spans_s(clocks).max(axis=1) + self.problem.overhead_s

    def energy_j(self, clocks: Clocks | None = None) -> float:
        """Returns the mean energy of an iteration over all pipelines, in J, as `Plan.energy_j` computes it."""
        return self.play(self.numbers(clocks)).energy_j

    # ---- what mean makespans depend on

    def mean_makespan(self, times_s: Array, blur_s: float = 0.0, *, weights: bool = False) -> tuple[float, Array]:
        """Returns the mean makespan in s, and by how much it grows per second of each node, (nodes, columns).

        Args:
            times_s: Durations in s, (nodes, columns).
            blur_s: Paths shorter than the longest by less than this, in s, count in part: so the result is smooth.
            weights: Whether the second result is wanted; otherwise it is None.
        """
        ends = self.paths.ends(times_s, blur_s, shares=weights)
        last = ends.ends_s[self.paths.last_nodes].reshape(-1, self.iterations, self.pipelines)
        longest = last.max(axis=(0, 2))
        shares = np.exp((last - longest[None, :, None]) / (blur_s or _TOLERANCE_S))
        total = shares.sum(axis=(0, 2))
        mean_s = float((longest + blur_s * np.log(total)).mean())
        if not weights:
            return mean_s, None
        shares /= total[None, :, None] * self.iterations
        return mean_s, self.paths.weights(ends, shares.reshape(len(last), -1))
