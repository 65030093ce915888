"""Real clocks for scenarios: lower ones where that saves most for the time it costs, higher ones where it costs least.

A move gives a run of one clock, the begin or end of it, or a single instruction another clock. What it does to the mean
time is foreseen from the longest paths, blurred a little, and from the slack of the instruction alone. Many moves are
made at once; if together they do not help, only the better half is made, and so on. In a turn the moves that save most
make the plan a little too slow; then those that cost least make it fast enough again. So good exchanges remain.
"""

from __future__ import annotations

from itertools import chain, pairwise
from typing import TYPE_CHECKING, NamedTuple

from pfo_fs.arrays import Array, np

if TYPE_CHECKING:
    from pfo_fs.planner.scenario_model import Played, Scenarios

_SWINGS = (1e-4, 3e-5)
"""Relative: how much too slow a plan gets in a turn; each is repeated while turns help, at most `_MOST_TURNS` times."""
_LONG_SWINGS = (2e-3, 5e-4, *_SWINGS)
"""The same where clock changes cost something, and single moves are larger."""
_WHOLE_SWINGS = (2e-2, 5e-3, *_LONG_SWINGS)
"""The same where whole ranks move: their next lower clock takes 0.5 to 2 % longer."""
_MOST_TURNS = 4
_BLUR = 3e-4
"""Paths that are shorter than the longest by less than this share of the makespan count in part."""
_STEPS = (1, 2, 4, 8)
"""Moves go this many clocks up or down."""
_PART = 3
"""The most instructions at the begin or end of a run that a move changes."""
_AT_ONCE = 0.5
"""In one round, moves are made until they are foreseen to use this share of the time that is missing or left."""
_FEW = 5e-5
"""If less than this share of the iteration time is missing, moves are to win all of it at once."""
_TIMES = (1, 4, 16, 64, 256)
"""If moves for the missing time win none, moves for these multiples of it are tried in turn."""
_ALONE = 64
"""If no moves together win time, up to this many are tried alone: plans on busy nodes save up to 0.05 points more."""
_SKIPPED = (0, 4, 32)
"""If moves to lower clocks save nothing, this many of the best ones are left out: plans save 0.03 points more."""
_MOST_ROUNDS = 60
"""A turn makes a plan slower, and then faster, in at most this many rounds each."""
MOST_WALKS, _CELLS = 1_000, 4e7
"""Plans get slower in at most this many walks through all scenarios, and this many instructions in all walks: some
seconds."""
_ROUND_WALKS = 4
"""A try of moves counts as this many walks more than it makes."""
_SAVES = 1e-6
"""Relative: a turn that saves less does not help."""
_WINS = 1e-12
"""Relative: a move that wins less time than this wins none, within the rounding of sums of durations."""


class _Moves(NamedTuple):
    """Moves: instructions `begin` to `end` of a group get a clock.

    Attributes:
        group, begin, end, clock: One number per move; clocks are positions.
        more_s: By how much the mean iteration time grows, as foreseen, in s.
        more_j: By how much the effective energy grows, as foreseen, in J.
    """

    group: Array
    begin: Array
    end: Array
    clock: Array
    more_s: Array
    more_j: Array


class ScenarioDescent:
    """Improves plans for some scenarios.

    Args:
        whole_ranks: Whether all instructions of a rank keep to one clock.
        waiting_w: Power of waiting that counts over the mean iteration time, in W; None: that of all GPUs.
        most_walks: The most walks through all scenarios in which plans get slower.
    """

    def __init__(
        self,
        scenarios: Scenarios,
        *,
        whole_ranks: bool = False,
        waiting_w: float | None = None,
        most_walks: int = MOST_WALKS,
    ) -> None:
        self._scenarios, problem = scenarios, scenarios.problem
        self._single = problem.switch_costs.none and not whole_ranks
        self._free = problem.switch_costs.none
        self._swings = _WHOLE_SWINGS if whole_ranks else _SWINGS if self._free else _LONG_SWINGS
        self._waiting_w = scenarios.waiting_power_w if waiting_w is None else waiting_w
        self._spans = list(pairwise(problem.pipeline.first_nodes))
        self._rank = np.array([rank for rank, (first, end) in enumerate(self._spans) for _ in range(first, end)])
        table = scenarios.table
        self._options = table.options
        self._place = np.full(table.ratio.shape, -1)  # of each clock in `_options`; -1: not in it
        row, place = (table.options >= 0).nonzero()
        self._place[row, table.options[row, place]] = place
        # The columns of each group; the last column stands for none.
        columns = [np.flatnonzero(scenarios.group_of == group) for group in range(scenarios.count)]
        most = max(map(len, columns)) // scenarios.iterations
        none = len(scenarios.group_of)
        self._columns = np.full((scenarios.count, scenarios.iterations, most), none)
        for group, own_columns in enumerate(columns):
            of_iteration = own_columns.reshape(scenarios.iterations, -1)
            self._columns[group, :, : of_iteration.shape[1]] = of_iteration
        self._durations_s = np.hstack([scenarios.durations_s, np.zeros((scenarios.nodes, 1))])
        self._members = scenarios.members.sum(axis=0)
        self._most_walks = min(most_walks, int(_CELLS / scenarios.durations_s.size))
        self._walks_left = 0

    def value(self, played: Played) -> tuple[int, float]:
        """Returns how good a plan is, the smaller the better: `violations` of the drivers' limits, and energy in J."""
        return played.violations, played.effective_j + self._waiting_w * played.mean_s

    def improve(self, clocks: Array, mean_s: float) -> Played | None:
        """Returns a plan with a mean iteration time of at most `mean_s`, or None if it finds none.

        Args:
            clocks: The plan to begin with, which may be too slow, as positions, (nodes, groups).
        """
        best = self.quickened(clocks, mean_s)
        self._walks_left = self._most_walks
        for swing in () if best is None else self._swings:
            for _ in range(_MOST_TURNS):
                if self._walks_left <= 0:
                    return best
                assert best is not None
                present = self._quicken(self._slow_down(best, mean_s * (1 + swing)), mean_s)
                if present.mean_s > mean_s or not self._is_better(present, best):
                    break
                best = present
        return best

    def _is_better(self, one: Played, other: Played) -> bool:
        (violations, value_j), (other_violations, other_j) = self.value(one), self.value(other)
        return violations < other_violations or (
            violations == other_violations and value_j < other_j - _SAVES * abs(other_j)
        )

    def quickened(self, clocks: Array, mean_s: float) -> Played | None:
        """Returns a plan with a mean iteration time of at most `mean_s` that is near these clocks, or None."""
        self._walks_left = self._most_walks
        found = self._quicken(self._scenarios.play(clocks), mean_s)
        return found if found.mean_s <= mean_s else None

    def _quicken(self, present: Played, mean_s: float) -> Played:
        for _ in range(_MOST_ROUNDS):
            if present.mean_s <= mean_s:
                break
            missing_s = present.mean_s - mean_s
            share = _AT_ONCE if missing_s > _FEW * mean_s else 1.0
            moves = self._moves(present, up=True)
            with_gain = (moves.more_s < -_WINS * mean_s) & (moves.more_j < np.inf)
            price = -moves.more_j[with_gain] / moves.more_s[with_gain]
            order = with_gain.nonzero()[0][price.argsort(kind="stable")]
            # Where several paths are equally long, only several moves together win time.
            together = (self._made(present, moves, order, times * share * missing_s, mean_s) for times in _TIMES)
            # If the drivers cannot make the first moves, one of the others may help.
            alone = (self._made(present, moves, order[at : at + 1], 0.0, mean_s) for at in range(1, _ALONE))
            found = next((plan for plan in chain(together, alone) if plan is not None), None)
            if found is None:
                break
            present = found
        return present

    def _slow_down(self, present: Played, mean_s: float) -> Played:
        waiting_w = self._waiting_w
        for _ in range(_MOST_ROUNDS):
            left_s = mean_s - present.mean_s
            if left_s <= 0 or self._walks_left <= 0:
                break
            moves = self._moves(present, up=False)
            saved_j = -moves.more_j - waiting_w * moves.more_s
            helps = saved_j > 0
            price = saved_j[helps] / np.maximum(moves.more_s[helps], 1e-6 * mean_s / self._scenarios.nodes)
            order = helps.nonzero()[0][(-price).argsort(kind="stable")]
            tries = (self._made(present, moves, order[skipped:], _AT_ONCE * left_s, mean_s) for skipped in _SKIPPED)
            found = next((plan for plan in tries if plan is not None), None)
            if found is None:
                break
            present = found
        return present

    def _made(self, present: Played, moves: _Moves, order: Array, most_s: float, mean_s: float) -> Played | None:
        """The plan after the first of these moves that do not touch each other; None if that does not help."""
        self._walks_left -= _ROUND_WALKS
        taken = np.full((self._scenarios.nodes + 1, self._scenarios.count), -1)
        chosen: list[int] = []
        used_s = 0.0
        for at in order.tolist():
            group, begin, end = moves.group[at], moves.begin[at], moves.end[at]
            around = taken[max(0, begin - 1) : end + 1, group]
            place = int(taken[begin, group])
            if place >= 0 and moves.begin[chosen[place]] == begin and moves.end[chosen[place]] == end:
                further_s = abs(float(moves.more_s[at])) - abs(float(moves.more_s[chosen[place]]))
                if further_s <= 0:
                    continue
                chosen[place] = at  # the same instructions, further
                used_s += further_s
            elif (around >= 0).any():
                continue
            else:
                taken[begin:end, group] = len(chosen)
                chosen.append(at)
                used_s += abs(float(moves.more_s[at]))
            if used_s >= most_s:
                break
        too_slow = present.mean_s > mean_s
        while chosen:
            clocks = present.clocks.copy()
            for at in chosen:
                clocks[moves.begin[at] : moves.end[at], moves.group[at]] = moves.clock[at]
            found = self._scenarios.play(clocks)
            self._walks_left -= 1
            if found.violations <= present.violations:
                if too_slow and found.mean_s < present.mean_s:
                    return found
                if not too_slow and found.mean_s <= mean_s and self.value(found)[1] < self.value(present)[1]:
                    return found
            chosen = chosen[: len(chosen) // 2]
        return None

    # ---- moves

    def _moves(self, present: Played, up: bool) -> _Moves:
        """All moves to higher clocks, or to lower ones, and what they do."""
        scenarios, clocks = self._scenarios, present.clocks
        group, begin, end, clock = self._singles(clocks, up) if self._single else self._runs(clocks, up)
        lengths = end - begin
        of_move: Array = np.repeat(np.arange(len(begin)), lengths)
        firsts = np.concatenate([[0], np.cumsum(lengths)[:-1]]).astype(int)
        node = np.arange(len(of_move)) - firsts[of_move] + begin[of_move]
        groups, kind = group[of_move], scenarios.table.kind[node]
        now, new = clocks[node, groups], clock[of_move]
        ratio, cost_w = scenarios.table.ratio, scenarios.table.cost_w
        offered = scenarios.table.offered[kind, new]
        new = np.where(offered, new, now)
        longer = ratio[kind, new] - ratio[kind, now]
        per_ratio_s, slack_s = self.blurred(present.times_s, present.ends_s)
        more_s = np.bincount(of_move, per_ratio_s[node, groups] * longer, len(begin))
        more_j = np.bincount(
            of_move, scenarios.busy_s[node, groups] * (cost_w[kind, new] - cost_w[kind, now]), len(begin)
        )
        if not up and len(node):
            columns = self._columns[groups]
            alone_s = self._durations_s[node[:, None, None], columns] * longer[:, None, None]
            alone_s -= np.hstack([slack_s, np.full((scenarios.nodes, 1), np.inf)])[node[:, None, None], columns]
            alone_s = np.maximum(alone_s.max(axis=2), 0.0).mean(axis=1)
            more_s = np.maximum(more_s, np.maximum.reduceat(alone_s, firsts))
        if not self._free:
            more_j = more_j + self._edges_j(clocks, group, begin, end, clock)
        more_j = np.where(np.bincount(of_move, ~offered, len(begin)) > 0, np.inf, more_j)
        return _Moves(group, begin, end, clock, more_s, more_j)

    def alone_s(self, longer_s: Array, slack_s: Array) -> Array:
        """Returns by how much the mean time grows if a node alone takes longer, in s, (nodes, groups)."""
        late_s = np.hstack([longer_s - slack_s, np.full((len(slack_s), 1), -np.inf)])[:, self._columns]
        found = np.maximum(late_s.max(axis=3), 0.0).mean(axis=2)
        return found

    def blurred(self, times_s: Array, ends_s: Array | None = None) -> tuple[Array, Array]:
        """Returns how the mean time depends on the nodes.

        Args:
            times_s: Durations in s, (nodes, columns).
            ends_s: When nodes end, in s, if that is known.

        Returns:
            By how much the mean time grows with ratios, in s, (nodes, groups); the nodes' slack in s, (nodes, columns).
        """

        scenarios = self._scenarios
        shape = -1, scenarios.iterations, scenarios.pipelines
        ends_s = scenarios.paths.ends(times_s).ends_s if ends_s is None else ends_s
        spans_s = ends_s[scenarios.paths.last_nodes].reshape(shape).max(axis=(0, 2))
        blur_s = _BLUR * float(spans_s.mean())
        _, weights = scenarios.mean_makespan(times_s, blur_s, weights=True)
        per_ratio_s = scenarios.by_group(weights * scenarios.durations_s) * scenarios.iterations
        deadlines = spans_s.repeat(scenarios.pipelines)
        return per_ratio_s, scenarios.paths.latest(times_s, deadlines) - ends_s

    def _singles(self, clocks: Array, up: bool) -> tuple[Array, Array, Array, Array]:
        """Each instruction alone, some steps up or down: group, begin, end, and clock of each move."""
        kind = self._scenarios.table.kind[:, None]
        place = self._place[kind, clocks]
        found = []
        for step in _STEPS:
            there = place + (-step if up else step)
            new = np.where(
                (place >= 0) & (there >= 0) & (there < self._options.shape[1]),
                self._options[kind, there.clip(0, self._options.shape[1] - 1)],
                -1,
            )
            node, group = (new >= 0).nonzero()
            found.append((group, node, node + 1, new[node, group]))
        group, begin, end, clock = (np.concatenate(each) for each in zip(*found, strict=True))
        return group, begin, end, clock

    def _runs(self, clocks: Array, up: bool) -> tuple[Array, Array, Array, Array]:
        """Runs of one clock some steps up or down, or a part of them at the clock of the run beside it."""
        found = []
        for group in range(self._scenarios.count):
            own = clocks[:, group].tolist()
            for first, last in self._spans:
                begin = first
                while begin < last:
                    end = begin + 1
                    while end < last and own[end] == own[begin]:
                        end += 1
                    for part_begin, part_end, clock in self._of_run(own, begin, end, first, last, up):
                        found.append((group, part_begin, part_end, clock))
                    begin = end
        if not found:
            empty: Array = np.zeros(0, int)
            return empty, empty, empty, empty
        group_, begin_, end_, clock_ = (np.array(each) for each in zip(*sorted(set(found)), strict=True))
        return group_, begin_, end_, clock_

    def _of_run(
        self, own: list[int], begin: int, end: int, first: int, last: int, up: bool
    ) -> list[tuple[int, int, int]]:
        """Moves (begin, end, clock) of one run."""
        now, most = own[begin], len(self._scenarios.table.mhz)
        sign = 1 if up else -1
        found = [(begin, end, now + sign * step) for step in _STEPS if 0 <= now + sign * step < most]
        beside = {own[node] for node in (begin - 1, end) if first <= node < last and (own[node] - now) * sign > 0}
        found += [(begin, end, clock) for clock in beside]
        if up and begin > first:
            found += [(begin - 1, end, clock) for _, _, clock in found if clock > own[begin - 1]]
        if up and end < last:
            found += [(begin, end + 1, clock) for at, _, clock in found if at == begin and clock > own[end]]
        for length in range(1, min(end - begin, _PART + 1)):
            if begin > first and own[begin - 1] in beside:
                found.append((begin, begin + length, own[begin - 1]))
            if end < last and own[end] in beside:
                found.append((end - length, end, own[end]))
        return found

    def _edges_j(self, clocks: Array, group: Array, begin: Array, end: Array, clock: Array) -> Array:
        """What the changes at both ends of moves add to the energy in J, as foreseen."""
        nodes = self._scenarios.nodes
        more_j = np.zeros(len(group))
        for node, at_begin in ((begin, True), (end, False)):
            inner = (node < nodes) & (node > 0)
            at = np.where(inner, node, 1)
            inner &= self._rank[at] == self._rank[at - 1]
            left, right = clocks[at - 1, group], clocks[at, group]
            new_left, new_right = (left, clock) if at_begin else (clock, right)
            old_j = self._scenarios.change_j(at, left, right)
            new_j = self._scenarios.change_j(at, new_left, new_right)
            more_j += np.where(inner, self._members[group] * (new_j - old_j), 0.0)
        return more_j
