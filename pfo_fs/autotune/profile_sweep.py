"""The measuring windows in which a job profiles its instructions, as generators of requests."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Sequence
from statistics import median

from pfo_fs.autotune.beliefs import Beliefs
from pfo_fs.autotune.clock_choice import coarse_clocks, fine_clocks, grid_of, share_out
from pfo_fs.autotune.instruction_runs import Kind
from pfo_fs.autotune.samples import Point
from pfo_fs.autotune.windows import measured_results
from pfo_fs.models import FrequencySchedule, ProfilingResult
from pfo_fs.scheduler.base import ScheduleRequest

_LEAST_S_PER_CLOCK = 0.5
"""A clock that shares iterations with others gets at least this time in a window."""
_TIMES_THE_SECONDS_NEEDED = 3.0
"""A clock gets this many times the seconds that measuring an instruction's power needs, because the rank also waits and
runs other instructions meanwhile."""
_COARSE_CLOCKS, _COARSE_CLOCKS_ONE_PER_WINDOW = 21, 9
"""Number of clocks of the first grid, if several share an iteration, and if each needs a window of its own."""
_FULL_SPEED_TRIES = 5
_MOST_FINE_WINDOWS = 6
"""At most this many windows follow the first grid: more of them would not reduce the noise that is left."""
CLOCKS_WITH_HIGHEST = 3
"""From this many clocks per iteration on, each window includes the highest clock."""
_WARM_UP_WINDOWS, _MOST_WINDOWS_WITHOUT_ORDER = 1, 10

Windows = Generator[ScheduleRequest, list[ProfilingResult], None]
OneWindow = Generator[ScheduleRequest, list[ProfilingResult], list[ProfilingResult]]
Outcome = Generator[ScheduleRequest, list[ProfilingResult], str]


class ProfileSweep:
    """Asks for windows, and adds what is measured in them to the measurements.

    Args:
        beliefs: What results are added to.
        tolerance: Relative error of time and power that is good enough.
        max_windows: The largest number of windows.
        accepts_full_speed: Called with the results of each window at the highest clocks; returns whether they are
            usable.

    Attributes:
        windows: Number of windows so far.
        warm_up: The results of the last window before any clock was set.
    """

    def __init__(
        self,
        beliefs: Beliefs,
        tolerance: float,
        max_windows: int,
        accepts_full_speed: Callable[[Sequence[ProfilingResult]], bool] = bool,
    ) -> None:
        self.tolerance = tolerance
        self.max_windows = max_windows
        self.windows = 0
        self.warm_up: list[ProfilingResult] = []
        self._beliefs = beliefs
        self._layout = beliefs.layout
        self._accepts_full_speed = accepts_full_speed

    def run(self) -> Outcome:
        """Asks for windows until every stage is known well enough.

        Returns:
            Why nothing can be planned, for the status; empty if plans can be made.
        """
        layout = self._layout
        while self.windows < _WARM_UP_WINDOWS or (
            not layout.one_pipeline() and self.windows < _MOST_WINDOWS_WITHOUT_ORDER
        ):
            self.warm_up = yield from self._window([], "warming up at default clocks")
        if not layout.one_pipeline():
            return "the order of instructions is still unknown, so there is nothing to schedule"
        if not all(layout.clocks_of_stage):
            return "there are GPUs whose clocks cannot be set, so there is nothing to schedule"
        results = yield from self.full_speed("measuring at the highest clocks")
        if not results:
            return "no pipeline has measured an iteration at the highest clocks, so no plan can be made"
        if not all(self._beliefs.samples.curve(kind) for kind in layout.kinds):
            return (
                "time or energy of some instructions was not measured, so no plan can be made: messages of the ranks "
                "say whether marks are wrong; else energies of their GPUs cannot be read"
            )
        yield from self.lower_clocks(results)
        return ""

    def full_speed(self, message: str) -> OneWindow:
        """Asks for windows at the highest clocks; returns the results of the first usable one, or none."""
        for _ in range(_FULL_SPEED_TRIES):
            results = yield from self.highest_clocks(message)
            if self._accepts_full_speed(results):
                return results
        return []

    def highest_clocks(self, message: str) -> OneWindow:
        """Asks for a window at the highest clocks that does not replace what plans are compared with."""
        return (yield from self._measure([clocks[:1] for clocks in self._layout.clocks_of_stage], 1, message))

    def lower_clocks(self, results: Sequence[ProfilingResult], kinds: Collection[Kind] = ()) -> Windows:
        """Asks for windows of lower clocks.

        Args:
            results: The results of a window at the highest clocks.
            kinds: Only stages that run one of these (stage, instruction) are measured; empty: all stages.
        """
        clocks_of_stage, curves = self._layout.clocks_of_stage, self._curves
        most = self._most_clocks_per_iteration(results)
        about = _COARSE_CLOCKS if most >= CLOCKS_WITH_HIGHEST else _COARSE_CLOCKS_ONE_PER_WINDOW
        grids = [grid_of(clocks, about) for clocks in clocks_of_stage]
        asked = [not kinds or not set(kinds).isdisjoint(curves(stage)) for stage in range(len(grids))]
        fine_windows = 0
        while self.windows < self.max_windows:
            stages = list(enumerate(zip(clocks_of_stage, grids, strict=True)))
            wanted = [
                coarse_clocks(clocks, grid, curves(stage)) if asked[stage] else [] for stage, (clocks, grid) in stages
            ]
            qualifier = ""
            if not any(wanted):
                qualifier = ", at most"
                wanted = [
                    fine_clocks(clocks, grid, curves(stage), self.tolerance) if asked[stage] else []
                    for stage, (clocks, grid) in stages
                ]
                fine_windows += 1
                # A clock on a few stages does not justify another window for all of them.
                if fine_windows > _MOST_FINE_WINDOWS or sum(map(len, wanted)) <= sum(asked) / 2:
                    break
            yield from self._measure(wanted, most, f"profiling: {sum(map(len, wanted))} clocks to go{qualifier}")

    def _most_clocks_per_iteration(self, results: Sequence[ProfilingResult]) -> int:
        """Returns how many clocks can share an iteration if all stages are to get enough samples at each of them."""
        times_s = results[0].iter_time if results else []
        window_s = median(times_s) * len(times_s) if times_s else 0.0
        least_s = max(_LEAST_S_PER_CLOCK, _TIMES_THE_SECONDS_NEEDED * self._seconds_needed(results))
        most = max(1, int(window_s / least_s))
        ranks = self._layout.one_pipeline()
        return min(len(set(share_out(self._kinds_of(rank), range(most), most))) for rank in ranks)

    def _curves(self, pp_rank: int) -> dict[Kind, dict[int, Point]]:
        """The measured points of all kinds of instructions that a pipeline-parallel rank runs."""
        return {kind: self._beliefs.samples.curve(kind) for kind in self._layout.kinds_of(pp_rank)}

    def _kinds_of(self, rank: int) -> list[tuple[int, str]]:
        return [(stage, name) for name, stage in self._layout.order(rank)]

    def _power_error_wanted(self) -> float:
        """Relative error of a power after one window."""
        return 2 * self.tolerance

    def _seconds_needed(self, results: Sequence[ProfilingResult]) -> float:
        """Returns how many seconds an instruction must run until its power is precise enough, by the noise so far."""
        needed = []
        for result in results:
            for power in result.powers:
                if power.instruction and power.power > 0:
                    excess = power.error / power.power / self._power_error_wanted()
                    needed.append(power.seconds * excess * excess)
        return median(needed) if needed else _LEAST_S_PER_CLOCK

    def _measure(self, wanted: Sequence[Sequence[int]], most: int, message: str) -> OneWindow:
        """Asks for a window in which each stage runs through the first of the clocks it wants.

        A stage that wants none runs at its highest clock.

        Args:
            wanted: For each pipeline-parallel rank, clocks in MHz.
            most: At most this many clocks share an iteration.
            message: Text for the status.
        """
        schedules = []
        for info in self._layout.rank_infos:
            highest_mhz = self._layout.clocks_of_stage[info.pp_rank][0]
            wanted_mhz = [mhz for mhz in wanted[info.pp_rank] if mhz != highest_mhz]
            if most >= CLOCKS_WITH_HIGHEST or not wanted_mhz:
                wanted_mhz = [highest_mhz, *wanted_mhz]
            order = self._layout.order(info.rank)
            shared = share_out(self._kinds_of(info.rank), wanted_mhz, most)
            schedules.append(
                FrequencySchedule(
                    rank=info.rank,
                    frequencies=[(name, mhz) for (name, _), mhz in zip(order, shared, strict=True)],
                    stages=[stage for _, stage in order] if self._layout.names_stages(info.rank) else None,
                )
            )
        return (yield from self._window(schedules, message))

    def _window(self, schedules: list[FrequencySchedule], message: str) -> OneWindow:
        """Asks for one window, and adds what was measured."""
        results = measured_results((yield ScheduleRequest(schedules, "measure", message)))
        self.windows += 1
        self._beliefs.take(results, schedules)
        return results
