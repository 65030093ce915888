"""Least mean energy within a mean iteration time, with durations anywhere on the convex hulls of the clocks.

This is a convex program with a copy of the DAG for each pipeline of each scenario, which soon is too large for a solver
of linear programs to solve in seconds. Here it is solved by accelerated gradient steps (FISTA): blurred longest paths
(`LongestPaths`) make the mean time smooth, and a walk forwards and one backwards tell how it grows with each duration;
each step takes energies exactly. The blur falls in stages. The price of time beyond that of waiting rises until the
mean time is right (augmented Lagrangian).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pfo_fs.arrays import Array, np

if TYPE_CHECKING:
    from pfo_fs.planner.scenario_model import Scenarios

_BLURS = (3e-3, 1e-3, 3e-4)
"""Blurs of the stages, as shares of the mean makespan."""
_STEPS = 100
"""Gradient steps of a stage."""
_PRICE_STEPS = 10
"""Steps after which the price is set anew."""
_PATIENCE = 0.25
"""If the mean time is off by the blur, the price of time changes by this share of its usual size."""
_CURVATURE = 1e3
"""The curvature that is assumed first."""
_LONGER, _SHORTER = 2.0, 0.9
"""The assumed curvature is multiplied by `_LONGER` while it proves too small, and by `_SHORTER` after each step."""


class ScenarioAnswer(NamedTuple):
    """The program's answer.

    Attributes:
        ratios: Duration of each node as a multiple of that at its max clock, (nodes, groups).
        price_w: The price of a second of mean iteration time, in J/s; it includes the power of waiting.
    """

    ratios: Array
    price_w: float


class ScenarioRelaxation:
    """The program of some scenarios, in which clock changes cost nothing.

    Args:
        near: The answer to begin with: that of another relaxation for about the same scenarios and time; or None.
    """

    def __init__(self, scenarios: Scenarios, near: ScenarioAnswer | None = None) -> None:
        self._scenarios = scenarios
        table = scenarios.table
        self._rows = [np.flatnonzero(table.kind == kind) for kind in range(len(table.hulls))]
        self._slopes = [np.diff(costs) / np.diff(ratios) for ratios, costs in table.hulls]
        fastest = np.array([ratios[0] for ratios, _ in table.hulls])
        self._fastest = fastest[table.kind][:, None].repeat(scenarios.count, axis=1)
        self._busy_s = scenarios.busy_s
        self._state: _State | None = None
        if near is not None and near.ratios.shape == self._fastest.shape:
            slowest = np.array([ratios[-1] for ratios, _ in table.hulls])[table.kind][:, None]
            price_w = max(0.0, near.price_w - scenarios.waiting_power_w)
            self._state = _State(near.ratios.clip(self._fastest, slowest), price_w, _CURVATURE)

    def energy_j(self, ratios: Array) -> float:
        """Returns the effective energy of the instructions, in J."""
        return sum(
            float((self._busy_s[rows] * np.interp(ratios[rows], *hull)).sum())
            for rows, hull in zip(self._rows, self._scenarios.table.hulls, strict=True)
        )

    def mean_s(self, ratios: Array, blur_s: float = 0.0) -> float:
        """Returns the mean makespan in s, without the overhead."""
        return self._scenarios.mean_makespan(self._times_s(ratios), blur_s)[0]

    def saved(self, answer: ScenarioAnswer) -> float:
        """Returns the share of the energy at max clocks that an answer saves."""
        waiting_w: float = self._scenarios.waiting_power_w
        answer_j, full_j = (
            self.energy_j(each) + waiting_w * self.mean_s(each) for each in (answer.ratios, self._fastest)
        )
        return 1 - answer_j / full_j

    def _times_s(self, ratios: Array) -> Array:
        return self._scenarios.durations_s * ratios[:, self._scenarios.group_of]

    def _nearest(self, wanted: Array, curvature: float) -> Array:
        """Ratios with the least sum of energy and `curvature` / 2 times the squared distance to the wanted ones."""
        found = np.empty_like(wanted)
        for rows, (ratios, _), slopes in zip(self._rows, self._scenarios.table.hulls, self._slopes, strict=True):
            if len(ratios) == 1:
                found[rows] = ratios[0]
                continue
            # The answer stays at a corner of the hull while the wanted ratio passes from one slope to the next.
            left, right = ratios[1:] + slopes / curvature, ratios[:-1] + slopes / curvature
            corners = np.concatenate([right[:1], np.stack([left[:-1], right[1:]], 1).ravel(), left[-1:]])
            stays = np.concatenate([ratios[:1], ratios[1:-1].repeat(2), ratios[-1:]])
            found[rows] = np.interp(wanted[rows], corners, stays)
        return found

    def solve(self, mean_s: float, steps: int = _STEPS) -> ScenarioAnswer:
        """Returns the answer for a mean iteration time in s, overhead included, which it keeps nearly.

        If there is an earlier answer, it begins there and runs only the last stage.

        Args:
            steps: Gradient steps of each stage; the time that this takes is proportional to it.
        """
        ratios = self._fastest
        span_s = self.mean_s(ratios)
        target_s = max(mean_s - self._scenarios.problem.overhead_s, span_s)
        state = self._state or _State(ratios, 0.0, _CURVATURE)
        for share in _BLURS if self._state is None else _BLURS[-1:]:
            state = self._stage(state, target_s, share * span_s, steps)
        self._state = state
        return ScenarioAnswer(state.ratios, state.price_w + self._scenarios.waiting_power_w)

    def _stage(self, state: _State, target_s: float, blur_s: float, steps: int) -> _State:
        scenarios, waiting_w = self._scenarios, self._scenarios.waiting_power_w
        ratios, price_w, curvature = state
        scale_w = (
            sum(
                float(self._busy_s[rows].sum() * -slopes[0])
                for rows, slopes in zip(self._rows, self._slopes, strict=True)
                if len(slopes)
            )
            / target_s
        )
        stiffness = max(scale_w, waiting_w, 1e-9) * _PATIENCE / blur_s

        def value(mean_s: float) -> tuple[float, float]:
            """The price of the mean time in J, and of a further second in J/s."""
            more_w = max(0.0, price_w + stiffness * (mean_s - limit_s))
            return waiting_w * mean_s + (more_w**2 - price_w**2) / (2 * stiffness), waiting_w + more_w

        ahead, pace, least = ratios, 1.0, float("inf")
        blurred_s = self.mean_s(ratios, blur_s)
        limit_s = target_s + blurred_s - self.mean_s(ratios)
        for number in range(steps):
            mean_s, weights = scenarios.mean_makespan(self._times_s(ahead), blur_s, weights=True)
            here_j, further_w = value(mean_s)
            slopes_s = scenarios.by_group(weights * scenarios.durations_s) * scenarios.iterations
            slopes_w = further_w * slopes_s / self._busy_s
            while True:
                found = self._nearest(ahead - slopes_w / curvature, curvature)
                moved = found - ahead
                blurred_s = self.mean_s(found, blur_s)
                there_j = value(blurred_s)[0]
                most_j = here_j + (self._busy_s * moved * (slopes_w + curvature / 2 * moved)).sum()
                if there_j <= most_j + 1e-9 * abs(here_j):
                    break
                curvature *= _LONGER
            total_j = there_j + self.energy_j(found)
            if total_j > least:  # the pace was too high
                ahead, pace = found, 1.0
            else:
                faster = (1 + (1 + 4 * pace * pace) ** 0.5) / 2
                ahead, pace = found + (pace - 1) / faster * (found - ratios), faster
            ratios, least, curvature = found, total_j, curvature * _SHORTER
            if number % _PRICE_STEPS == _PRICE_STEPS - 1:
                price_w = max(0.0, price_w + stiffness * (blurred_s - limit_s))
                limit_s, least = target_s + blurred_s - self.mean_s(ratios), float("inf")
        return _State(ratios, price_w, curvature)


class _State(NamedTuple):
    ratios: Array
    price_w: float
    curvature: float
