"""The sweep of a policy that plans: a few windows, each of the clocks that tell most, and then a first plan.

The plan in force is measured as well, so it is the cheapest window of all. The sweep only has to tell enough for a plan
that saves something and makes no iteration longer: it ends as soon as the errors near the highest clocks are small, or
after a few windows, because more of them would delay the saving by more than they would add to it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import median

from pfo_fs.autotune.clock_curves import ClockCurves, fit_curves
from pfo_fs.autotune.profile_sweep import CLOCKS_WITH_HIGHEST, ProfileSweep, Windows
from pfo_fs.autotune.samples import Kind
from pfo_fs.autotune.window_choice import StageRun, candidates_of, next_clocks, time_and_power_errors
from pfo_fs.models import ProfilingResult

_WINDOWS = 2
"""At most this many windows at lower clocks before the first plan."""
_LONGER = 0.1
"""Relative: iterations of a window may take about this much longer than at the highest clocks."""
_LOWEST = 0.35
"""As a share of the highest clock: the energy of any instruction rises again below about this clock."""
_MOST_CLOCKS = 6
"""At most this many clocks share an iteration; with more, each is measured for too short a time."""
_LEAST_STRETCH_S = 0.35
"""A clock that shares an iteration with others runs for about this time at once, so that energy counters tick in it."""
_POWER_ERROR_WANTED = 0.02
"""Relative error of a power after one window; the fit over all clocks and stages then makes it smaller."""
_KNOWN_TIME_ERROR, _KNOWN_POWER_ERROR = 0.002, 0.015
"""Relative: the sweep ends when the clocks that matter are known with smaller errors."""


class InformedSweep(ProfileSweep):
    """Asks for the windows that tell most; see `ProfileSweep` for its arguments."""

    def lower_clocks(self, results: Sequence[ProfilingResult]) -> Windows:
        """Asks for windows of lower clocks.

        Args:
            results: The results of a window at the highest clocks.
        """
        stages = self._stage_runs()
        most = min(_MOST_CLOCKS, self._most_clocks_per_iteration(results), self._stretches(results))
        for number in range(_WINDOWS):
            if self.windows >= self.max_windows:
                return
            curves = self._curves(stages)
            time_error, power_error = time_and_power_errors(curves)
            if time_error <= _KNOWN_TIME_ERROR and power_error <= _KNOWN_POWER_ERROR:
                return
            wanted = next_clocks(stages, curves, most, most >= CLOCKS_WITH_HIGHEST, _LONGER)
            if not any(wanted):
                return
            yield from self._measure(wanted, most, f"profiling: at most {_WINDOWS - number} windows to go")

    def _stretches(self, results: Sequence[ProfilingResult]) -> int:
        """Returns how many stretches of an iteration are long enough for the ticks of an energy counter."""
        times_s = results[0].iter_time if results else []
        return max(1, int(median(times_s) / _LEAST_STRETCH_S)) if times_s else 1

    def _stage_runs(self) -> list[StageRun]:
        layout = self._layout
        return [
            StageRun(Counter(layout.kinds_of(pp_rank)), clocks) for pp_rank, clocks in enumerate(layout.clocks_of_stage)
        ]

    def _curves(self, stages: Sequence[StageRun]) -> list[ClockCurves]:
        """Returns what is believed at the clocks to choose from."""
        candidates: dict[Kind, list[int]] = {}
        for stage in stages:
            for kind in stage.kinds:
                candidates[kind] = candidates_of(stage.clocks_mhz, _LOWEST)
        samples = self._measurements.samples
        return fit_curves({kind: samples.timed(kind) for kind in candidates if samples.curve(kind)}, candidates)

    def _power_error_wanted(self) -> float:
        return _POWER_ERROR_WANTED
