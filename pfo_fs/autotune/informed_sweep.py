"""The sweep of a policy that plans: one window at lower clocks, a careful plan, and more windows only where they pay.

The plan in force is measured as well, so it is the cheapest window of all. The first window only has to tell enough for
a plan that saves something and makes no iteration longer. A further one follows if the clocks that the plan uses or
might use are still uncertain, and measures those that tell most of them. When their errors are small, or after a few
windows, the sweep ends: what a further window could add to the saving is then less than what it costs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from statistics import median

from pfo_fs.autotune.clock_curves import ClockCurves, fit_curves
from pfo_fs.autotune.instruction_runs import Kind
from pfo_fs.autotune.profile_sweep import CLOCKS_WITH_HIGHEST, ProfileSweep, Windows
from pfo_fs.autotune.samples import is_checked
from pfo_fs.autotune.window_choice import StageRun, Usage, candidates_of, next_clocks, time_and_power_errors
from pfo_fs.models import ProfilingResult

_FURTHER_WINDOWS = 2
"""At most this many windows follow the first plan."""
_LONGER = (0.1, 0.2, 0.3)
"""Relative: iterations of a window may take about this much longer than at the highest clocks; more where all clocks
that fit into less were measured before, as on GPUs that offer few clocks."""
_LOWEST = 0.35
"""As a share of the highest clock: the energy of any instruction rises again below about this clock."""
_MOST_CLOCKS = 6
"""At most this many clocks share an iteration; with more, each is measured for too short a time."""
_LEAST_STRETCH_S = 0.35
"""A clock that shares an iteration with others runs for about this time at once, so that energy counters tick in it."""
_POWER_ERROR_WANTED = 0.02
"""Relative error of a power after one window; the fit over all clocks and stages then makes it smaller."""
_TIME_TOLERANCES, _POWER_TOLERANCES = 2 / 3, 5.0
"""The sweep ends when the clocks that matter are known with smaller errors than this many times the tolerance: the plan
depends on times far more than on powers."""
_ENOUGH_FOR_THE_LAST = 2.5
"""The last window must be worth more: it only follows if errors are this many times as large."""
_ENOUGH_FROM_EARLIER = 5.0
"""The same for the first window if an earlier job's profile is used: its plan is measured before long."""


class InformedSweep(ProfileSweep):
    """Asks for the windows that tell most; see `ProfileSweep` for its arguments.

    Attributes:
        is_known: Whether an earlier job's profile is used, so that a plan can be made with less care.
    """

    is_known = False
    _most = 1
    _further = 0
    _kinds: Collection[Kind] = ()  # only stages that run one of these are measured; empty: all

    def lower_clocks(self, results: Sequence[ProfilingResult], kinds: Collection[Kind] = ()) -> Windows:
        """Asks for a window of lower clocks; not if they are known already.

        Args:
            results: The results of a window at the highest clocks.
            kinds: Only stages that run one of these (stage, instruction) are measured; empty: all stages.
        """
        self._most = min(_MOST_CLOCKS, self._most_clocks_per_iteration(results), self._stretches(results))
        self._further, self._kinds = _FURTHER_WINDOWS, kinds
        enough = _ENOUGH_FROM_EARLIER if self.is_known else 1.0
        yield from self._lower_window({}, "profiling", enough)

    def further(self, in_plan: Usage) -> Windows:
        """Asks for a window of the clocks on which a plan depends most; not if they are known well enough.

        Args:
            in_plan: Share of an instruction's runs that the plan runs at a clock.
        """
        if self._further:
            self._further -= 1
            enough = 1.0 if self._further else _ENOUGH_FOR_THE_LAST
            yield from self._lower_window(in_plan, "profiling the clocks on which the plan depends most", enough)

    def _lower_window(self, in_plan: Usage, message: str, enough: float) -> Windows:
        stages = self._stage_runs()
        curves = self._curves(stages, in_plan)
        time_error, power_error = time_and_power_errors(curves, in_plan)
        enough *= self.tolerance
        if time_error <= enough * _TIME_TOLERANCES and power_error <= enough * _POWER_TOLERANCES:
            self._further = 0
            return
        wanted = self._wanted(stages, curves, in_plan)
        if self._kinds:
            wanted = [
                clocks if not stage.kinds.keys().isdisjoint(self._kinds) else []
                for clocks, stage in zip(wanted, stages, strict=True)
            ]
        if any(wanted) and self.windows < self.max_windows:
            yield from self._measure(wanted, self._most, message)

    def _wanted(self, stages: Sequence[StageRun], curves: Sequence[ClockCurves], in_plan: Usage) -> list[list[int]]:
        """Returns the clocks that tell most, for each stage: of the shortest window in which any of them is new."""
        points = self._measurements.samples.points
        unchecked = bool(self._measurements.elsewhere) or self._measurements.samples.borrows

        def checked(kind: Kind, mhz: int, time_s: float) -> bool:
            return not unchecked or is_checked(points.get(kind, {}), mhz, time_s)

        with_highest = self._most >= CLOCKS_WITH_HIGHEST
        found = []
        for longer in _LONGER:
            wanted = next_clocks(stages, curves, self._most, with_highest, longer, in_plan, checked)
            found.append(wanted)
            if any(
                mhz not in points.get(kind, {})
                for stage, clocks in zip(stages, wanted, strict=True)
                for kind in stage.kinds
                for mhz in clocks
            ):
                return wanted
        return found[0]

    def _stretches(self, results: Sequence[ProfilingResult]) -> int:
        """Returns how many stretches of an iteration are long enough for the ticks of an energy counter."""
        times_s = results[0].iter_time if results else []
        return max(1, int(median(times_s) / _LEAST_STRETCH_S)) if times_s else 1

    def _stage_runs(self) -> list[StageRun]:
        layout = self._layout
        return [
            StageRun(Counter(layout.kinds_of(pp_rank)), clocks) for pp_rank, clocks in enumerate(layout.clocks_of_stage)
        ]

    def _curves(self, stages: Sequence[StageRun], in_plan: Usage) -> list[ClockCurves]:
        """Returns what is believed at the clocks to choose from, those of the plan among them."""
        candidates: dict[Kind, list[int]] = {}
        for stage in stages:
            for kind in stage.kinds:
                used = {mhz for (used_kind, mhz) in in_plan if used_kind in stage.kinds}
                candidates[kind] = sorted({*candidates_of(stage.clocks_mhz, _LOWEST), *used}, reverse=True)
        samples = self._measurements.samples
        measured = {kind: samples.timed(kind) for kind in candidates if samples.curve(kind)}
        return fit_curves(measured, candidates, self._measurements.elsewhere)

    def _power_error_wanted(self) -> float:
        return _POWER_ERROR_WANTED
