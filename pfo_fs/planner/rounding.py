"""From durations anywhere between two options to real clocks, never beyond the deadline.

1. *Diffuse*: walk the DAG in order. Each node takes, of the options that end no later than the relaxed schedule needs
   it to, the one that is cheapest at the relaxation's price of time. What it ends early is carried on to those behind.
2. *Sweep*: walk the DAG, forwards and backwards in turn. Each node takes the cheapest option that fits between what is
   before and what is behind it, or, if that saves more, trades time with one of its neighbours.
Several starts are diffused (both directions, several shares of the price) and the best result is kept. All of it is
deterministic.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pfo_fs.planner.problem import Assignment, Problem
from pfo_fs.planner.relaxation import Relaxed

PRICE_SHARES = (1.0, 0.9, 0.5, 0.0)
"""With the full price, carried time waits for the node where it is worth most; with none, the next node takes it."""
LARGE = 20_000
"""Above this many nodes only `LARGE_SHARES` are tried: the rest improves plans by a few hundredths of a percent."""
LARGE_SHARES = (1.0, 0.5)
_MAX_SWEEPS = 8
_EPSILON_S = 1e-12
_MARGINS = (1e-13, 1e-12, 1e-10, 1e-8)

Neighbours = list[list[tuple[int, float]]]


@dataclass(frozen=True)
class _View:
    """The DAG seen in one direction; backwards, what is behind a node is before it."""

    order: Sequence[int]
    before: Neighbours
    after: Neighbours


class Rounder:
    """Finds real clocks for one problem."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        order = problem.pipeline.topological
        self._times = [choices.times_s for choices in problem.choices]
        self._costs = [choices.costs_j for choices in problem.choices]
        self._forwards = _View(order, problem.before, problem.after)
        self._backwards = _View(order[::-1], problem.after, problem.before)

    def round(self, relaxed: Relaxed, deadline_s: float, known: Sequence[Assignment] = ()) -> list[int]:
        """Returns an assignment whose makespan is within the deadline.

        Args:
            relaxed: The relaxation's answer for this deadline.
            deadline_s: The longest makespan in s, without the overhead; the fastest plan's or longer.
            known: Assignments within the deadline, to be improved too.
        """
        targets = self._within(relaxed.times_s, deadline_s)
        best: list[int] = [0] * len(self._times)
        best_cost = self._problem.cost_of(best)
        for start, backwards in self._starts(relaxed, targets, deadline_s, known):
            self._settle(start, deadline_s, backwards)
            self._repair(start, deadline_s)
            cost = self._problem.cost_of(start)
            if cost < best_cost:
                best, best_cost = start, cost
        return best

    def improve(self, assignment: Assignment, deadline_s: float) -> list[int]:
        """Returns an assignment that is within the deadline, and no worse, by sweeps alone."""
        result = list(assignment)
        self._settle(result, deadline_s, backwards=False)
        self._repair(result, deadline_s)
        better = self._problem.cost_of(result) <= self._problem.cost_of(assignment)
        return result if better else list(assignment)

    def _starts(
        self, relaxed: Relaxed, targets: Sequence[float], deadline_s: float, known: Sequence[Assignment]
    ) -> Iterator[tuple[list[int], bool]]:
        for share in LARGE_SHARES if len(targets) > LARGE else PRICE_SHARES:
            prices = [share * price for price in relaxed.prices_w]
            for view, backwards in ((self._forwards, False), (self._backwards, True)):
                yield self._diffuse(view, targets, prices, deadline_s), backwards
        for assignment in known:
            yield list(assignment), False

    def _makespan(self, times_s: Sequence[float]) -> float:
        return self._problem.timing(times_s).iteration_time_s - self._problem.overhead_s

    def _within(self, times_s: Sequence[float], deadline_s: float) -> list[float]:
        """Returns the relaxed durations, less what a solver's tolerance has put beyond the deadline."""
        fastest = [times[0] for times in self._times]
        latest = self._latest(self._forwards, fastest, deadline_s)  # behind a node, everything at its fastest
        ends = [0.0] * len(times_s)
        targets = [0.0] * len(times_s)
        for node in self._forwards.order:
            start = max((ends[first] + delay_s for first, delay_s in self._problem.before[node]), default=0.0)
            targets[node] = max(fastest[node], min(times_s[node], latest[node] - start))
            ends[node] = start + targets[node]
        return targets

    @staticmethod
    def _latest(view: _View, times_s: Sequence[float], deadline_s: float) -> list[float]:
        """When each node must have ended for all behind it to end within the deadline."""
        latest = [deadline_s] * len(times_s)
        for node in reversed(view.order):
            end = deadline_s
            for later, delay_s in view.after[node]:
                must = latest[later] - times_s[later] - delay_s
                if must < end:
                    end = must
            latest[node] = end
        return latest

    def _diffuse(
        self, view: _View, targets: Sequence[float], prices_w: Sequence[float], deadline_s: float
    ) -> list[int]:
        latest = self._latest(view, targets, deadline_s)
        ends = [0.0] * len(targets)
        chosen = [0] * len(targets)
        for node in view.order:
            start = 0.0
            for first, delay_s in view.before[node]:
                ready = ends[first] + delay_s
                if ready > start:
                    start = ready
            times, costs, price = self._times[node], self._costs[node], prices_w[node]
            slowest = bisect_right(times, latest[node] - start + _EPSILON_S) - 1
            best, least = 0, costs[0] + price * times[0]
            for option in range(1, slowest + 1):
                value = costs[option] + price * times[option]
                if value <= least + 1e-9:  # equal but for rounding: the slower one, as the relaxation lies between them
                    best, least = option, min(value, least)
            chosen[node] = best
            ends[node] = start + times[best]
        return chosen

    def _settle(self, assignment: list[int], deadline_s: float, backwards: bool) -> None:
        """Sweeps in both directions in turn until it does not help any more."""
        views = (self._backwards, self._forwards) if backwards else (self._forwards, self._backwards)
        cost = self._problem.cost_of(assignment)
        for number in range(_MAX_SWEEPS):
            self._sweep(views[number % 2], assignment, deadline_s)
            last, cost = cost, self._problem.cost_of(assignment)
            if number and last - cost <= 1e-7 * abs(cost):
                return

    def _sweep(self, view: _View, assignment: list[int], deadline_s: float) -> None:
        times_of, costs_of = self._times, self._costs
        current = [times[option] for times, option in zip(times_of, assignment, strict=True)]
        latest = self._latest(view, current, deadline_s)
        ends = self._ends(view, current)
        for node in view.order:
            start = 0.0
            for first, delay_s in view.before[node]:
                ready = ends[first] + delay_s
                if ready > start:
                    start = ready
            times, costs = times_of[node], costs_of[node]
            best = max(0, bisect_right(times, latest[node] - start + _EPSILON_S) - 1)
            least, partner, partner_option = costs[best] - 1e-9, -1, 0
            for later, delay_s in view.after[node]:
                later_times, later_costs = times_of[later], costs_of[later]
                end = latest[later] - later_times[0] - delay_s
                for other, other_delay_s in view.after[node]:
                    if other != later:
                        must = latest[other] - times_of[other][assignment[other]] - other_delay_s
                        if must < end:
                            end = must
                ready_later = 0.0
                for first, first_delay_s in view.before[later]:
                    if first != node:
                        ready = ends[first] + first_delay_s
                        if ready > ready_later:
                            ready_later = ready
                now = later_costs[assignment[later]]
                for option in range(bisect_right(times, end - start + _EPSILON_S) - 1, -1, -1):
                    ready = start + times[option] + delay_s
                    if ready < ready_later:
                        ready = ready_later
                    then = bisect_right(later_times, latest[later] - ready + _EPSILON_S) - 1
                    if then >= 0 and costs[option] + later_costs[then] - now < least:
                        least = costs[option] + later_costs[then] - now
                        best, partner, partner_option = option, later, then
                    if ready == ready_later:
                        break  # faster would not let the neighbour begin sooner
            assignment[node] = best
            ends[node] = start + times[best]
            if partner >= 0:
                assignment[partner] = partner_option

    @staticmethod
    def _ends(view: _View, times_s: Sequence[float]) -> list[float]:
        ends = [0.0] * len(times_s)
        for node in view.order:
            start = 0.0
            for first, delay_s in view.before[node]:
                ready = ends[first] + delay_s
                if ready > start:
                    start = ready
            ends[node] = start + times_s[node]
        return ends

    def _repair(self, assignment: list[int], deadline_s: float) -> None:
        """Takes back the last bits that rounding errors of the sweeps have put beyond the deadline."""
        for margin in _MARGINS:
            if self._makespan(self._problem.times_of(assignment)) <= deadline_s:
                return
            self._sweep(self._forwards, assignment, deadline_s * (1 - margin))
        if self._makespan(self._problem.times_of(assignment)) > deadline_s:
            assignment[:] = [0] * len(assignment)
