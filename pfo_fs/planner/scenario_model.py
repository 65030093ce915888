"""Recent iterations of all pipelines of a job as scenarios: what clocks make of their times and energy.

Where instructions take unequal times, the mean of the longest path is more than the longest path of the means, the more
so the more paths are about equally long, as they are under a plan. So a plan is judged by the mean over scenarios.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

from pfo_fs.errors import ConfigError, PlanError
from pfo_fs.planner.longest_paths import Ends, LongestPaths
from pfo_fs.planner.problem import Problem
from pfo_fs.planner.switch_costs import queue_s

Clocks = Sequence[Sequence[int]]
"""For each group of pipelines, the clock of each node, in MHz."""

_TOLERANCE_S = 1e-9
"""A run of one clock may be too short by this much."""
_RUN_MARGIN = 1.05
"""Runs of one clock in recombined scenarios last this multiple of what drivers need: they are to fit the others."""


class ClockTable:
    """What each kind of instruction does at each clock, per second that it takes at its highest clock.

    Attributes:
        mhz: All clocks of the profile, rising; in arrays, clocks are positions in it.
        kind: For each node, the number of its kind, (nodes,).
        ratio: Time at each clock, (kinds, clocks); infinite where it was not measured.
        cost_w: Effective energy in J at each clock, over all GPUs of a rank; infinite where it was not measured.
        offered: Whether plans may use each clock, (kinds, clocks).
        nearest: The measured clock that is nearest to each clock.
        below: The highest measured clock that is not above each clock; the lowest one where there is none.
        max_clock: The highest clock of each kind, (kinds,).
        hulls: For each kind, the ratios and costs on the lower convex hull, from the fastest point on.
    """

    def __init__(self, problem: Problem) -> None:
        import numpy as np

        tables = problem.measured_by_kind
        number_of = {kind: number for number, kind in enumerate(tables)}
        self.mhz = sorted({mhz for each in tables.values() for mhz in each.frequencies_mhz})
        self.number = {mhz: number for number, mhz in enumerate(self.mhz)}
        self.kind: Any = np.array([number_of[i.stage, i.name] for i in problem.pipeline.instructions])
        shape = len(tables), len(self.mhz)
        self.ratio: Any = np.full(shape, np.inf)
        self.cost_w: Any = np.full(shape, np.inf)
        self.offered: Any = np.zeros(shape, bool)
        self.nearest: Any = np.zeros(shape, int)
        self.below: Any = np.zeros(shape, int)
        self.max_clock: Any = np.zeros(len(tables), int)
        self.hulls: list[tuple[Any, Any]] = []
        all_mhz: Any = np.array(self.mhz)
        for row, (kind, choices) in enumerate(tables.items()):
            own = [self.number[mhz] for mhz in choices.frequencies_mhz]
            self.max_clock[row] = max(own)
            top_s = choices.times_s[choices.option_at[self.mhz[max(own)]]]
            self.offered[row, [self.number[mhz] for mhz in problem.choices_by_kind[kind].frequencies_mhz]] = True
            self.ratio[row, own] = np.array(choices.times_s) / top_s
            self.cost_w[row, own] = np.array(choices.costs_j) / top_s
            known: Any = np.array(sorted(own))
            self.nearest[row] = known[np.abs(all_mhz[:, None] - all_mhz[known]).argmin(axis=1)]
            self.below[row] = known[np.maximum(np.searchsorted(known, np.arange(len(self.mhz)), "right") - 1, 0)]
            on_hull = problem.choices_by_kind[kind]
            self.hulls.append(
                tuple(np.array(x)[list(on_hull.hull)] / top_s for x in (on_hull.times_s, on_hull.costs_j))
            )


@dataclass(frozen=True)
class Played:
    """All scenarios at some clocks.

    Attributes:
        clocks: The clocks, as positions, (nodes, groups).
        times_s: Durations in s, (nodes, columns); a column is a pipeline of an iteration.
        lost_s: For how long ranks stand still before nodes, in s; None: never.
        ends: When nodes end.
        spans_s: Makespan of each pipeline in s, (iterations, pipelines).
        mean_s: Mean iteration time in s, with the overhead.
        energy_j: Mean energy of an iteration over all pipelines, in J.
        impossible: How many things the drivers cannot do.
    """

    clocks: Any
    times_s: Any
    lost_s: Any
    ends: Ends
    spans_s: Any
    mean_s: float
    energy_j: float
    impossible: int


class Scenarios:
    """Recent iterations of all pipelines of a job: how long each instruction takes at the highest clocks.

    Args:
        problem: One pipeline with its delays and overhead. Of its profile, only ratios of times and powers count.
        full_s: Durations in s at the highest clocks, (iterations, nodes, pipelines).
        groups: For each pipeline the number of its group, from 0 on: pipelines of a group run the same clocks.

    Raises:
        ConfigError: An argument has the wrong shape, or a duration is not above zero.
    """

    def __init__(self, problem: Problem, full_s: Any, groups: Sequence[int]) -> None:
        import numpy as np

        full: Any = np.asarray(full_s, float)
        nodes = len(problem.pipeline.instructions)
        if full.ndim != 3 or full.shape[1] != nodes or full.shape[2] != len(groups) or not full.size:
            raise ConfigError(
                f"full_s has shape {full.shape}, not (iterations, {nodes} nodes, {len(groups)} pipelines)"
            )
        if not (np.isfinite(full) & (full > 0)).all():
            raise ConfigError("full_s holds a duration that is not above zero")
        if sorted(set(groups)) != list(range(max(groups) + 1)):
            raise ConfigError(f"groups are {list(groups)}; number them from 0 on without gaps")
        self.problem, self.full_s = problem, full
        self.iterations, self.nodes, self.pipelines = full.shape
        self.groups: Any = np.array(groups)
        self.count = int(max(groups)) + 1
        self.group_of: Any = np.tile(self.groups, self.iterations)
        self.durations_s: Any = np.ascontiguousarray(full.transpose(1, 0, 2)).reshape(nodes, -1)
        self.members: Any = (self.groups[:, None] == np.arange(self.count)).astype(float)
        self.waiting_power_w = problem.waiting_power_w * self.pipelines
        self._run_margin = 1.0

    @cached_property
    def table(self) -> ClockTable:
        """What each kind of instruction does at each clock."""
        return ClockTable(self.problem)

    @cached_property
    def shortest_s(self) -> Any:
        """How long runs at each clock last at least, in s: those that begin with a change up, and down, (2, clocks)."""
        import numpy as np

        costs = self.problem.switch_costs
        found: Any = np.array([[costs.shortest_run_s(down, mhz) for mhz in self.table.mhz] for down in (False, True)])
        return found

    @property
    def paths(self) -> LongestPaths:
        """The longest paths through the DAG."""
        return self.problem.paths

    @cached_property
    def busy_s(self) -> Any:
        """Mean duration of each node at its highest clock, summed over the pipelines of a group, (nodes, groups)."""
        return self.by_group(self.durations_s)

    def recombined(self, count: int, seed: int = 0) -> Scenarios:
        """Returns these scenarios and further ones: each micro-batch as it was in one of the iterations, by chance.

        A plan for few iterations uses up slack that others do not have. These are others, as far as what varies is
        what a micro-batch holds. The same scenarios always give the same ones.

        Args:
            count: Number of further iterations.
            seed: Others have another seed, so that plans can be judged by iterations that they were not made for.
        """
        import numpy as np

        batches: Any = np.array([instruction.microbatch for instruction in self.problem.pipeline.instructions])
        shape = count, int(batches.max()) + 1, self.pipelines
        chosen: Any = np.random.default_rng(seed).integers(0, self.iterations, shape)[:, batches]
        further = np.take_along_axis(self.full_s, chosen, axis=0)
        found = Scenarios(self.problem, np.concatenate([self.full_s, further]), self.groups.tolist())
        found._run_margin = _RUN_MARGIN
        return found

    def by_group(self, values: Any) -> Any:
        """Means over iterations, summed over the pipelines of each group: (nodes, columns) to (nodes, groups)."""
        return values.reshape(len(values), self.iterations, self.pipelines).mean(axis=1) @ self.members

    # ---- clocks

    @cached_property
    def max_clocks(self) -> Any:
        """All nodes at their highest clocks, as positions, (nodes, groups)."""
        return self.table.max_clock[self.table.kind][:, None].repeat(self.count, axis=1)

    def numbers(self, clocks: Clocks | None) -> Any:
        """Returns clocks as positions, (nodes, groups); None: the highest.

        Raises:
            PlanError: A clock was not measured for its instruction.
        """
        import numpy as np

        if clocks is None:
            return self.max_clocks
        found: Any = np.array([[self.table.number.get(int(mhz), -1) for mhz in row] for row in clocks]).T
        if found.shape != (self.nodes, self.count):
            raise PlanError(f"clocks have shape {found.T.shape}, not ({self.count} groups, {self.nodes} nodes)")
        if (found < 0).any() or np.isinf(self.table.ratio[self.table.kind[:, None], found]).any():
            raise PlanError("the clocks hold one that was not measured for its instruction")
        return found

    def offered(self, clocks: Clocks) -> Any:
        """Returns the offered clocks that are nearest to some clocks, as positions, (nodes, groups)."""
        import numpy as np

        wanted: Any = np.array(clocks, float).T
        found: Any = np.empty(wanted.shape, int)
        for kind, offered in enumerate(self.table.offered):
            own = np.flatnonzero(offered)
            rows = self.table.kind == kind
            off: Any = np.array(self.table.mhz)[own] - wanted[rows][:, :, None]
            found[rows] = own[np.abs(off).argmin(axis=2)]
        return found

    def mhz(self, numbers: Any) -> list[list[int]]:
        """Returns clocks in MHz for each group and node, from positions."""
        return [[self.table.mhz[number] for number in row] for row in numbers.T.tolist()]

    def before(self, numbers: Any) -> Any:
        """The clock at which each node begins where clocks act late, (nodes, groups); each was measured for it."""
        import numpy as np

        kind = self.table.kind[:, None]
        before: Any = np.vstack([numbers[:1], numbers[:-1]])
        before = self.table.nearest[kind, before]
        firsts = list(self.problem.pipeline.first_nodes[:-1])
        before[firsts] = self.table.max_clock[self.table.kind[firsts]][:, None]
        return before

    def changed(self, numbers: Any) -> Any:
        """Before which nodes their rank changes its clock, (nodes, groups)."""
        import numpy as np

        changed: Any = np.zeros(numbers.shape, bool)
        changed[1:] = numbers[1:] != numbers[:-1]
        changed[list(self.problem.pipeline.first_nodes[:-1])] = False
        return changed

    # ---- what clocks make of the scenarios

    def play(self, numbers: Any) -> Played:
        """Returns times and energy at clocks, given as positions."""
        times_s, lost_s = self.times(numbers)
        ends = self.paths.ends(times_s, lost_s=lost_s)
        spans_s = ends.ends_s[self.paths.last].max(axis=0).reshape(self.iterations, self.pipelines)
        mean_s = float(spans_s.max(axis=1).mean()) + self.problem.overhead_s
        energy_j = self._effective_j(numbers) + self.waiting_power_w * mean_s
        impossible = 0
        if not self.problem.switch_costs.none:
            starts_s = ends.ends_s - times_s
            more_j, impossible = self._switching(numbers, times_s, starts_s, mean_s)
            energy_j += more_j
        return Played(numbers, times_s, lost_s, ends, spans_s, mean_s, energy_j, impossible)

    def times(self, numbers: Any) -> tuple[Any, Any]:
        """Returns durations in s, and for how long ranks stand still before nodes (None: never), (nodes, columns)."""
        import numpy as np

        costs, kind = self.problem.switch_costs, self.table.kind[:, None]
        ratio = self.table.ratio[kind, numbers]
        times_s: Any = self.durations_s * ratio[:, self.group_of]
        if costs.acts_late_s:
            old = self.table.ratio[kind, self.before(numbers)]
            share = (1 - ratio / old)[:, self.group_of]
            times_s += np.minimum(costs.acts_late_s, self.durations_s * old[:, self.group_of]) * share
        if not costs.stands_still_s:
            return times_s, None
        return times_s, (self.changed(numbers) * costs.stands_still_s)[:, self.group_of]

    def _effective_j(self, numbers: Any) -> float:
        """Energy of the instructions beyond that of waiting, in J; with that of clocks that act late."""
        import numpy as np

        table, kind = self.table, self.table.kind[:, None]
        cost_w = table.cost_w[kind, numbers]
        energy_j = float((self.busy_s * cost_w).sum())
        late_s = self.problem.switch_costs.acts_late_s
        if late_s:
            before = self.before(numbers)
            more_w = (table.cost_w[kind, before] - cost_w)[:, self.group_of]
            seconds = np.minimum(late_s / table.ratio[kind, before][:, self.group_of], self.durations_s)
            energy_j += float(self.by_group(seconds * more_w).sum())
        return energy_j

    def _switching(self, numbers: Any, times_s: Any, starts_s: Any, mean_s: float) -> tuple[float, int]:
        """Energy in J of GPUs at a clock that is not theirs, and how many things the drivers cannot do."""
        import numpy as np

        costs, spans = self.problem.switch_costs, list(pairwise(self.problem.pipeline.first_nodes))
        changed = self.changed(numbers)
        starts = starts_s.reshape(self.nodes, self.iterations, self.pipelines).mean(axis=1)
        starts = starts @ (self.members / self.members.sum(axis=0))
        energy_j, impossible = 0.0, 0
        for group in range(self.count):
            own, begin_s = numbers[:, group], starts[:, group]
            by_rank: list[Any] = [first + np.flatnonzero(changed[first:end, group]) for first, end in spans]
            # An iteration begins with the clocks of the last one's end.
            calls = [len(at) + int(own[a] != own[b - 1]) for at, (a, b) in zip(by_rank, spans, strict=True)]
            wrong_s: Any = np.zeros(self.nodes)
            for host in costs.hosts_of(len(spans)):
                on_host = sum(calls[rank] for rank in host)
                impossible += on_host > costs.most_changes(mean_s) + _TOLERANCE_S
                busy = on_host * costs.driver_time_s / mean_s
                for rank in host:
                    others = busy - calls[rank] * costs.driver_time_s / mean_s
                    wrong_s[spans[rank][0] : spans[rank][1]] = costs.wrong_clock_s + queue_s(costs, others, busy)
            for at, (first, _) in zip(by_rank, spans, strict=True):
                begins: Any = np.concatenate([[first], at])
                lowered: Any = np.concatenate([[False], own[at] < own[at - 1]])
                shortest_s: Any = self.shortest_s[lowered.astype(int), own[begins]]
                impossible += int((np.diff(begin_s[begins]) < self._run_margin * shortest_s[:-1] - _TOLERANCE_S).sum())
            at = np.flatnonzero(changed[:, group])
            if wrong_s.any() and len(at):
                energy_j += self._wrong_clock_j(own, at, wrong_s[at], times_s, starts_s, self.group_of == group)
        return energy_j, impossible

    def _wrong_clock_j(self, own: Any, at: Any, wrong_s: Any, times_s: Any, starts_s: Any, columns: Any) -> float:
        """Energy in J of the changes before the nodes `at`, around which GPUs have the higher clock for `wrong_s`."""
        import numpy as np

        table = self.table
        waiting_s = starts_s[at][:, columns] - starts_s[at - 1][:, columns] - times_s[at - 1][:, columns]
        seconds: Any = np.maximum(0.0, wrong_s[:, None] - np.maximum(0.0, waiting_s))
        lower = np.where(own[at - 1] < own[at], at - 1, at)
        kind, low = table.kind[lower], np.minimum(own[at - 1], own[at])
        high = table.below[kind, np.maximum(own[at - 1], own[at])]
        more_w = np.maximum(0.0, table.cost_w[kind, high] - table.cost_w[kind, low])
        seconds = np.minimum(seconds / table.ratio[kind, high][:, None], self.durations_s[lower][:, columns])
        energy_j: float = (seconds * more_w[:, None]).sum() / self.iterations
        return float(energy_j)

    # ---- answers for clocks in MHz

    def spans_s(self, clocks: Clocks | None = None) -> Any:
        """Returns each pipeline's own makespan in s, without the overhead, (iterations, pipelines).

        Args:
            clocks: For each group, the clock of each node, in MHz; None: the highest.
        """
        return self.play(self.numbers(clocks)).spans_s

    def iteration_times_s(self, clocks: Clocks | None = None) -> Any:
        """Returns iteration times in s, with the overhead: all pipelines wait for the last one, (iterations,)."""
        return self.spans_s(clocks).max(axis=1) + self.problem.overhead_s

    def energy_j(self, clocks: Clocks | None = None) -> float:
        """Returns the mean energy of an iteration over all pipelines, in J, as `Plan.energy_j` computes it."""
        return self.play(self.numbers(clocks)).energy_j

    def paths_weights(self, played: Played) -> Any:
        """Returns by how much the mean iteration time grows per second of each node, (nodes, columns)."""
        ends = self.paths.ends(played.times_s, lost_s=played.lost_s, shares=True)
        last = ends.ends_s[self.paths.last].reshape(-1, self.iterations, self.pipelines)
        longest = last >= last.max(axis=(0, 2), keepdims=True) - _TOLERANCE_S
        shares = longest / longest.sum(axis=(0, 2), keepdims=True) / self.iterations
        return self.paths.weights(ends, shares.reshape(len(last), -1))
