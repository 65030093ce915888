"""Profiles every instruction from the highest clock down, during the training itself.

An iteration of many micro-batches runs an instruction more often than is needed to measure it at one clock. So several
clocks share an iteration, one after another from high to low, each for a stretch that is much longer than the ticks of
the energy counter and the change of a clock. All stages are measured at the same time: the clock of one stage changes
when instructions of the others begin, but not how long they take.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from statistics import median

from pfo_fs.autotune.beliefs import Beliefs
from pfo_fs.autotune.job_layout import MOST_WINDOWS_WITHOUT_ORDER, JobLayout, Kind
from pfo_fs.autotune.samples import Point
from pfo_fs.autotune.windows import measured_results
from pfo_fs.errors import PlanError
from pfo_fs.models import FrequencySchedule, JobInfo, ProfilingResult, RankInfo
from pfo_fs.scheduler.base import FrequencyScheduler, ScheduleGenerator, ScheduleRequest, Windows
from pfo_fs.settings import PFOSettings

_CLOCKS = 21
"""About 21 clocks are measured, evenly spread over those on offer: 60 MHz apart on an A100, where curves are
straight between two of them within the noise."""
_RISEN = 0.03
"""Relative: once the energy of each instruction is this far above its minimum, lower clocks are of no use: they take
more time and more energy. In published profiles it does not fall below that minimum again."""
_LEAST_S_PER_CLOCK = 0.5
"""A clock that shares iterations with others gets at least this time in a window: five ticks of a slow energy
counter."""
_LEAST_SAMPLES = 3
"""Samples that each instruction needs in each stretch, without those just after the change of the clock."""
_CLOCKS_WITH_HIGHEST = 3
"""From this many clocks per iteration on, each window includes the highest clock, so that drift shows."""
_FULL_SPEED_TRIES = 5
"""A window at max clocks without any result is tried again four times: results can be late once."""


class InstructionProfiler(FrequencyScheduler):
    """Measures time and power of every instruction from the highest clock down, then leaves the clocks alone.

    The first measuring window runs at default clocks, to warm up and to learn the order of instructions; the second at
    the highest clock. In later windows, each stage runs through the next lower clocks until the energy of all its
    instructions has risen from its minimum. Then the clocks that are not known within `tolerance` are measured again,
    in as many windows at most as all this has taken: the next halving of their errors would take four times as many.

    Args:
        tolerance: Relative error of time that is good enough; of power, twice this.
        max_windows: The largest number of windows.
    """

    def __init__(
        self,
        job_info: JobInfo,
        rank_infos: Sequence[RankInfo],
        pfo_settings: PFOSettings,
        tolerance: float = 0.003,
        max_windows: int = 64,
    ) -> None:
        super().__init__(job_info, rank_infos, pfo_settings)
        self._layout = JobLayout(job_info, self.rank_infos, lambda: self.orders)
        self._beliefs = Beliefs(self._layout)
        self._tolerance, self._max_windows = tolerance, max_windows
        self._windows = 0

    @classmethod
    def check_args(cls, tolerance: object = 0.003, max_windows: object = 64, **_: object) -> None:
        """Raises PlanError for invalid arguments."""
        if not isinstance(tolerance, (int, float)) or not 0 < tolerance < 1:
            raise PlanError(f"tolerance is {tolerance!r}; give a relative error such as 0.003")
        if not isinstance(max_windows, int) or max_windows < 1:
            raise PlanError(f"max_windows is {max_windows!r}; give a number of measuring windows, such as 64")

    def export_profile(self) -> str:
        """Returns everything measured, as a profile CSV: the columns of Zeus's, then the errors."""
        return self._beliefs.samples.csv()

    def _run(self) -> ScheduleGenerator:
        problem = yield from self._profile()
        done = f"profiled in {self._windows} windows; clocks are left alone"
        yield ScheduleRequest([], "run", problem or done, converged=not problem)

    def _profile(self) -> Windows[str]:
        """Asks for windows until every stage is known well enough; returns why nothing can be profiled, or ''."""
        layout = self._layout
        for _ in range(MOST_WINDOWS_WITHOUT_ORDER):
            yield from self._window([], "warming up at default clocks")
            if layout.one_pipeline():
                break
        if problem := layout.problem():
            return problem
        results: list[ProfilingResult] = []
        for _ in range(_FULL_SPEED_TRIES):
            results = yield from self._measure([[] for _ in layout.clocks_of_stage], 1, "measuring max clocks")
            if results:
                break
        if problem := self._beliefs.problem():
            return problem
        most = self._most_clocks_per_iteration(results)
        yield from self._measure_all(most, self._new_clocks, self._max_windows)
        yield from self._measure_all(most, self._rough_clocks, min(self._max_windows, 2 * self._windows))
        return ""

    def _measure_all(self, most: int, clocks_of: Callable[[int], list[int]], max_windows: int) -> Windows[None]:
        """Asks for windows until no stage wants a clock, or until there were this many windows."""
        while self._windows < max_windows:
            wanted = [clocks_of(stage) for stage in range(len(self._layout.clocks_of_stage))]
            if not any(wanted):
                break
            yield from self._measure(wanted, most, f"profiling: {sum(map(len, wanted))} clocks to go, at most")

    def _new_clocks(self, stage: int) -> list[int]:
        """The clocks that a stage has not measured yet, highest first; empty once all energies have risen."""
        curves = self._curves(stage)
        if all(map(_has_risen, curves)):
            return []
        return [mhz for mhz in self._grid(stage) if any(mhz not in curve for curve in curves)]

    def _rough_clocks(self, stage: int) -> list[int]:
        """The measured clocks that are not known well enough, the worst first."""
        errors: dict[int, float] = {}
        for curve in self._curves(stage):
            for mhz, point in curve.items():
                errors[mhz] = max(point.time_error, point.power_error / 2, errors.get(mhz, 0.0))
        rough = [mhz for mhz in self._grid(stage)[1:] if errors.get(mhz, 0.0) > self._tolerance]
        return sorted(rough, key=lambda mhz: -errors[mhz])

    def _grid(self, stage: int) -> list[int]:
        offered = self._layout.clocks_of_stage[stage]
        return offered[:: max(1, round(len(offered) / _CLOCKS))]

    def _curves(self, stage: int) -> list[dict[int, Point]]:
        return [self._beliefs.samples.curve(kind) for kind in dict.fromkeys(self._layout.kinds_of(stage))]

    def _most_clocks_per_iteration(self, results: Sequence[ProfilingResult]) -> int:
        """How many clocks can share an iteration if all stages are to get enough samples at each of them."""
        times_s = results[0].iter_time if results else []
        window_s = median(times_s) * len(times_s) if times_s else 0.0
        most = max(1, int(window_s / _LEAST_S_PER_CLOCK))
        stages = range(len(self._layout.clocks_of_stage))
        return min(len(set(share_out(self._layout.kinds_of(stage), range(most), most))) for stage in stages)

    def _measure(self, wanted: Sequence[Sequence[int]], most: int, message: str) -> Windows[list[ProfilingResult]]:
        """Asks for a window in which each stage runs through the first of the clocks it wants, or at its highest one.

        At most `most` clocks share an iteration; `wanted` does not include the highest clock.
        """
        layout = self._layout
        clocks = []
        for stage, lower in enumerate(wanted):
            highest = layout.clocks_of_stage[stage][:1] if most >= _CLOCKS_WITH_HIGHEST or not lower else []
            clocks.append(share_out(layout.kinds_of(stage), [*highest, *lower], most))
        schedules = [layout.schedule(info.rank, clocks[info.pp_rank]) for info in layout.rank_infos]
        return (yield from self._window(schedules, message))

    def _window(self, schedules: list[FrequencySchedule], message: str) -> Windows[list[ProfilingResult]]:
        """Asks for one window, and adds what was measured."""
        results = measured_results((yield ScheduleRequest(schedules, "measure", message)))
        self._windows += 1
        self._beliefs.take(results, schedules)
        return results


def _has_risen(curve: Mapping[int, Point]) -> bool:
    """Whether the energy is above its minimum by 3 % at the lowest clock that was measured."""
    return bool(curve) and curve[min(curve)].energy_j > (1 + _RISEN) * min(point.energy_j for point in curve.values())


def share_out(kinds: Sequence[Kind], clocks_mhz: Sequence[int], most: int) -> list[int]:
    """Returns a clock for each instruction of a rank's iteration, so that as many of the clocks as possible run.

    At most the first `most` clocks run. Each gets a stretch of the iteration with enough samples of every kind.
    """
    total, seen = Counter(kinds), Counter[Kind]()
    occurrences = []
    for kind in kinds:
        occurrences.append(seen[kind])
        seen[kind] += 1
    for count in range(min(most, len(clocks_mhz)), 1, -1):
        by_position = [position * count // len(kinds) for position in range(len(kinds))]
        by_occurrence = [number * count // total[kind] for number, kind in zip(occurrences, kinds, strict=True)]
        for parts in (by_position, by_occurrence):
            # Runs just after a change of the clock are no samples.
            runs = zip(kinds, parts, [-1, *parts], strict=False)
            clean = Counter((kind, part) for kind, part, part_before in runs if part == part_before)
            if all(clean[kind, part] >= _LEAST_SAMPLES for kind in total for part in range(count)):
                return [clocks_mhz[part] for part in parts]
    return [clocks_mhz[0]] * len(kinds)
