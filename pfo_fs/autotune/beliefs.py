"""Everything that a job's measurements tell: durations and what varies, powers, and what clock changes cost."""

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from statistics import median

from pfo_fs.arrays import Array, np
from pfo_fs.autotune.clock_curves import TIME
from pfo_fs.autotune.curves import Curves
from pfo_fs.autotune.job_layout import ClockPlan, JobLayout, pipeline_of
from pfo_fs.autotune.judgements import Trial
from pfo_fs.autotune.load_rows import Ratios
from pfo_fs.autotune.loads import Found, LoadModel
from pfo_fs.autotune.samples import Point, Samples, measured_switching
from pfo_fs.autotune.windows import LATENCY_UNKNOWN_S, Window, measured_results, window_of
from pfo_fs.models import FrequencySchedule, ProfilingResult
from pfo_fs.planner import Calibration, Pipeline, SwitchCosts, calibrate
from pfo_fs.turns import MOST_TURNS, ROUND

_MOST_WINDOWS = 8
"""At most this many windows are kept: their iterations show what loads to expect. The latest window at the highest
clocks stays: runs at the highest clock tell by how much an instruction's place in the iteration lengthens it."""
_MOST_INSTRUCTIONS = 6000
"""Calibration uses three windows at most, and of each about this many instructions, but one iteration at least."""
_LEAST_OFF, _FAR = 0.02, 4.0
"""Durations of instructions count as different, from before or from those at default clocks, if they differ by 2 % and
by four standard errors."""
_BLOCKING_SHARE = 0.2
"""Blocking power (of a waiting GPU) as a share of the power at the highest clock, if none was measured: 84 of 475 W
(A100), 70 of 299 W (A40)."""
_SURE_POWER_ERROR = 0.02
"""Relative: a power with a larger error does not tell how much more warm GPUs draw."""
_LESS_SURE = 10.0
"""What was measured before a change counts with ten times its error."""
LEAST_BLOCK_S = 2.0
"""Between two ticks of an energy counter, up to 0.1 s apart, energy is divided in proportion to time: that mixes 2 % of
the energies of two turns if each lasts for 2 s, after a first step that does not count."""
LEAST_ROUNDS = 2
"""In two rounds, each rank has four turns with a plan, and four without: the least that tells its own scatter."""
_LATE = 0.05
"""Where clocks act later than after 5 % of a step, a turn lasts for two steps or more."""


def block_of(step_s: float, late_s: float, least_s: float) -> int:
    """Returns for how many steps each turn lasts: `least_s` after its first step; two or more if `late_s` is long."""
    least = 1 + math.ceil(least_s / step_s)
    return min(max(least, 2 if late_s > _LATE * step_s else 1), MOST_TURNS // len(ROUND))


def _doubt(curve: Mapping[int, Point]) -> None:
    """Makes the durations at lower clocks count ten times less surely."""
    for mhz, point in curve.items():
        if mhz != max(curve):
            point.time_weight /= _LESS_SURE**2


class Beliefs:
    """What is believed of a job.

    Attributes:
        samples: Time and power of each instruction at each clock, at an ordinary load.
        loads: What varies; None before the first window.
        windows: The latest windows.
        trials: What was measured of plans.
        switching: What a clock change costs; None where clocks do not follow the device: then plans have one clock per
            rank.
        clock_unknown_s: For how long after a change it is unknown which clock an instruction has run at, in s: 0.0 if
            clock processes know when each clock acts that was set in the latest window with changes.
        slow_pipelines: Data-parallel ranks whose measurements are not used, because they do not run at their clocks.
    """

    def __init__(self, layout: JobLayout) -> None:
        self.layout = layout
        self.samples = Samples()
        self.loads: LoadModel | None = None
        self.windows: list[Window] = []
        self.trials: dict[ClockPlan, Trial] = {}
        self.switching: SwitchCosts | None = None
        self.clock_unknown_s = LATENCY_UNKNOWN_S
        self._capped_late_s = 0.0  # where power limits stand for clocks: how late they act, in s
        self.slow_pipelines: frozenset[int] = frozenset()
        self._curves: Curves | None = None

    def block(self, *, for_energy: bool) -> int:
        """Returns for how many steps each turn lasts: two or more if clocks act late, more if energies count."""
        costs = self.switching
        late_s = 0.0 if costs is None else costs.latency_s + costs.driver_time_s
        least_s = LEAST_BLOCK_S if for_energy else self._capped_late_s
        return block_of(float(self.windows[-1].step_s.mean()), late_s, least_s)

    def trial_steps(self) -> int:
        """For how many steps a plan is tried at first: two rounds of turns."""
        return LEAST_ROUNDS * len(ROUND) * self.block(for_energy=False)

    @cached_property
    def pipeline(self) -> Pipeline:
        """The instructions that each pipeline runs; only once all orders are known."""
        return pipeline_of([self.layout.order(rank) for rank in self.layout.one_pipeline()])

    def take(
        self,
        results: Sequence[ProfilingResult],
        schedules: Sequence[FrequencySchedule],
        turns: Sequence[int] = (),
        *,
        after_alarm: bool = False,
    ) -> Window | None:
        """Adds what was measured in one window; returns it, or None if no pipeline was measured on all stages.

        Args:
            schedules: The schedules in force; a rank without one ran at its default clocks.
            turns: Which ranks followed them in which step, as in `Term`.
            after_alarm: Whether the job has changed: see `_forget_after_alarm`.
        """
        taken = [result for result in measured_results(results) if self._is_taken(result.rank)]
        if any(result.switching is not None for result in taken):
            self.switching = measured_switching(taken, self.layout.rank_infos)
            reports = [result.switching for result in taken if result.switching is not None]
            late_s = (report.latency_s or 0.0 for report in reports if report.mode == "launch")
            self._capped_late_s = max(late_s, default=0.0)
        if not self.layout.one_pipeline():
            return None
        window = window_of(self.layout, self.pipeline, taken, schedules, turns)
        if window is not None:
            if np.ptp(window.clocks_mhz, axis=1).any():  # a window without changes tells nothing of them
                self.clock_unknown_s = LATENCY_UNKNOWN_S if window.or_mhz.any() else 0.0
            self.loads = self.loads or LoadModel(self.pipeline)
            if after_alarm:
                self._forget_after_alarm(window, self.loads)
            ratios = self.ratios()
            self.windows = [*self._worth_keeping(), window]
            for found in self.loads.fit(self.windows, ratios):
                self._forget_if_changed(found)
                point = self.samples.point(found.kind, found.mhz)
                point.add_times(found.count, found.time_s, found.error * found.time_s)
        level, in_force = self._power_level(taken), {schedule.rank: schedule for schedule in schedules}
        for result in taken:
            top_mhz = self._top_mhz(result.rank)
            ran = self.layout.run_by(result.rank, in_force.get(result.rank))
            self.samples.add_powers(result, [(name, stage, mhz or top_mhz) for name, stage, mhz in ran], top_mhz, level)
        self._curves = None
        return window

    def _worth_keeping(self) -> list[Window]:
        """The windows that stay when another one comes."""
        if len(self.windows) < _MOST_WINDOWS:
            return self.windows
        clocks_mhz = self.layout.clocks_mhz
        tops = [[clocks_mhz[each.stage][0]] for each in self.pipeline.instructions]
        at_top = [number for number, window in enumerate(self.windows) if (window.clocks_mhz >= tops).all()]
        dropped = 1 if at_top[-1:] == [0] else 0
        return self.windows[:dropped] + self.windows[dropped + 1 :]

    def _forget_if_changed(self, found: Found) -> None:
        """Drops what was known of a kind at a lower clock if it surely takes another time there now.

        Then how the kind follows the clock has changed at other clocks, too: these count ten times less surely.
        """
        curve = self.samples.points.get(found.kind, {})
        before = curve.get(found.mhz)
        if found.is_highest or before is None or not before.time_weight:
            return
        off = abs(found.time_s / before.time_s - 1)
        if off > _LEAST_OFF and off > _FAR * math.hypot(found.error, before.time_error):
            del curve[found.mhz]
            _doubt(curve)

    def _forget_after_alarm(self, window: Window, loads: LoadModel) -> None:
        """Drops what was measured of plans, and earlier windows if durations have changed; else doubts the curves."""
        self.trials = {}
        if self._have_changed(window, loads):
            self.windows = []
        else:
            for curve in self.samples.points.values():
                _doubt(curve)

    def _have_changed(self, window: Window, loads: LoadModel) -> bool:
        """Whether instructions surely take another time at the highest clock than in the windows before."""
        top_mhz = self.ratios().top_mhz[loads.kind_of_node][:, None]

        def of_iterations(windows: Sequence[Window]) -> Array:
            """The mean log duration of each kind at the highest clock in each iteration; masked where there is none."""
            found: Array = []
            for each in windows:
                logs: Array = np.ma.array(np.log(each.times_s), mask=(each.clocks_mhz < top_mhz) | ~each.at_clock)
                of_kinds = [logs[:, loads.kind_of_node == kind] for kind in range(len(loads.kinds))]
                found += list(np.ma.stack([of_kind.mean(axis=(1, 2)) for of_kind in of_kinds], axis=1))
            return np.ma.stack(found)

        before, now = of_iterations(self.windows), of_iterations([window])
        off = abs(now.mean(axis=0) - before.mean(axis=0))
        error = np.ma.sqrt(before.var(axis=0) / before.count(axis=0) + now.var(axis=0) / now.count(axis=0))
        return bool(((off > _LEAST_OFF) & (off > _FAR * error)).filled(False).any())

    def _power_level(self, results: Sequence[ProfilingResult]) -> float:
        """The powers at the highest clocks as a multiple of those of the first windows: warm GPUs leak more current."""
        ratios = []
        for result in results:
            top_mhz, stages = self._top_mhz(result.rank), dict(self.layout.order(result.rank))
            for power in result.powers:
                known = self.samples.curve((stages.get(power.instruction, -1), power.instruction)).get(top_mhz)
                is_top = power.frequency in (0, top_mhz) and power.error < _SURE_POWER_ERROR * power.power
                if is_top and known and known.power_error < _SURE_POWER_ERROR:
                    ratios.append(power.power / known.power_w)
        return median(ratios) if ratios else 1.0

    def _top_mhz(self, rank: int) -> int:
        return self.layout.clocks_of_stage[self.layout.place[rank].pp_rank][0]

    def problem(self) -> str:
        """Returns why no plan can be made from what was measured, for the status; empty if one can."""
        if not self.windows:
            return "no pipeline has measured an iteration at max clocks, so no plan can be made"
        if not all(self.samples.curve(kind) for kind in self.layout.kinds):
            return (
                "time or energy of some instructions was not measured, so no plan can be made: messages of the ranks "
                "say whether marks are wrong; else energies of their GPUs cannot be read"
            )
        return ""

    def add_trial(self, trial: Trial) -> None:
        """Adds what a window tells of a plan."""
        before = self.trials.get(trial.plan)
        self.trials[trial.plan] = trial if before is None else before.pooled(trial)

    def default_clocks_differ(self) -> bool:
        """Returns whether instructions of the latest window took longer at default clocks than at max clocks."""
        assert self.loads is not None
        latest = self.windows[-1]
        kinds, top_mhz = self.loads.kind_of_node, self.ratios().top_mhz
        ranks = np.array([rank for rank, order in enumerate(self.pipeline.orders) for _ in order])
        with_schedule = latest.follows[:, ranks]
        at_top = (latest.clocks_mhz >= top_mhz[kinds][:, None]) & latest.at_clock
        total = weight = 0.0
        for number in range(len(self.loads.kinds)):
            nodes = kinds == number
            logs, chosen = np.log(latest.times_s[:, nodes]), at_top[:, nodes]
            before, now = logs[chosen & ~with_schedule[:, nodes]], logs[chosen & with_schedule[:, nodes]]
            if min(len(before), len(now)) > 1:
                error2 = before.var() / len(before) + now.var() / len(now) + _LEAST_OFF**2 / 4
                total, weight = total + float(np.median(before) - np.median(now)) / error2, weight + 1 / error2
        return weight > 0 and total / weight > max(_LEAST_OFF, _FAR * weight**-0.5)

    def forget(self) -> None:
        """Drops everything that was measured."""
        self.samples, self.loads, self._curves = Samples(), None, None
        self.windows.clear()
        self.trials.clear()

    def blocking_power_w(self) -> float:
        """Returns the power of a waiting GPU, in W."""
        if waiting_w := self.samples.waiting_power_w:
            return waiting_w
        curves = [self.samples.curve(kind) for kind in self.samples.points]
        return _BLOCKING_SHARE * median(curve[max(curve)].power_w for curve in curves if curve)

    def curves(self) -> Curves:
        """Returns what is believed of each instruction at each clock."""
        if self._curves is None:
            self._curves = Curves(self.samples, self.layout.kinds, self.layout.clocks_mhz)
        return self._curves

    def ratios(self) -> Ratios:
        """Returns what is believed of r, the time at a clock as a multiple of the time at the highest clock."""
        assert self.loads is not None
        kinds = self.loads.kinds
        if all(self.samples.curve(kind) for kind in kinds):
            return self.curves().ratios(kinds)
        clocks = sorted({mhz for clocks in self.layout.clocks_mhz.values() for mhz in clocks})
        top_mhz = np.array([max(self.layout.clocks_mhz[stage]) for stage, _ in kinds], float)
        z = np.maximum(0.0, np.log(top_mhz[:, None] / np.array(clocks, float)))
        return Ratios(np.array(clocks, float), TIME.slope * z, TIME.slope_error * z, top_mhz)

    def at_max_clocks_s(self) -> list[Array]:
        """Returns, for each window, what its instructions would have taken at max clocks, in s."""
        assert self.loads is not None
        ratios = self.ratios()
        return [self.loads.at_max_clocks_s(window, ratios) for window in self.windows]

    def calibration(self) -> Calibration | None:
        """Returns the delays that the order of instructions leaves out; None while too little was measured."""
        pipeline = self.pipeline
        most = max(1, _MOST_INSTRUCTIONS // len(pipeline.instructions))
        windows = [self.windows[0], *self.windows[1:][-2:]]
        counts = [min(window.iterations, most) for window in windows]
        if sum(counts) < 2:
            return None
        times_s = [window.times_s[:count, :, 0] for window, count in zip(windows, counts, strict=True)]
        spans_s = [window.spans_s[:count, 0] for window, count in zip(windows, counts, strict=True)]
        return calibrate(pipeline, np.concatenate(times_s).T, np.concatenate(spans_s))

    def _is_taken(self, rank: int) -> bool:
        """Whether results of a rank are used: its clocks can be set, and its pipeline is not slow."""
        info = self.layout.place[rank]
        return bool(info.available_frequencies) and info.dp_rank not in self.slow_pipelines
