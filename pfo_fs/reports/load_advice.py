"""What a job without loads would gain, if its micro-batches differ in their work: balanced batches, clocks from loads.

The recorded iterations are played by the code that decides in running jobs. A micro-batch's load is what its durations
on all stages have in common.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice

from pfo_fs.arrays import Array, np
from pfo_fs.autotune.curves import EVERYTHING, Curves
from pfo_fs.autotune.job_layout import numbered_iterations, steps_of
from pfo_fs.autotune.profile_exchange import points_of
from pfo_fs.autotune.samples import Samples
from pfo_fs.errors import PlanError
from pfo_fs.loads.choice import CHANGE_S, Clocks, LoadChoice
from pfo_fs.loads.state import LEAST_BALANCED
from pfo_fs.loads.step_shape import StepShape, by_micro_batch, shown_loads
from pfo_fs.models import RankInfo
from pfo_fs.planner import Measurement, Pipeline, Profile
from pfo_fs.reports.collect import JobData, Window, results_of
from pfo_fs.reports.timeline import dag_of
from pfo_fs.store.bodies import ModelBody

_TOGETHER = 0.5
"""Micro-batches look unequal if most of what varies, beyond chance, is common to their durations on all stages."""
_SURE = 2.0
"""A figure is told if it is larger than twice its standard error: else it may be none."""
_BEYOND_CHANCE = 3.0
"""A pipeline that is slower by more than three standard errors is permanently slow, whatever its batches."""
_MOST_PLAYED = 20_000
"""Energies are those of 20,000 instructions of a pipeline, but of ten iterations at least: more take a minute."""
_LEAST_STEPS = 10
"""The fewest iterations from which loads are learned."""
_STEPS, _MOST_VALUES = 60, 2_000_000
"""The latest 60 iterations are read, as many as clocks from loads learn from, or fewer with more than two million
durations; but always ten."""
LINK = "docs/load-clocks.md"
"""Where people read about clocks from loads."""


@dataclass(frozen=True)
class Share:
    """A share and its standard error."""

    value: float
    error: float

    @property
    def is_sure(self) -> bool:
        """Whether it is more than its error allows for nothing."""
        return self.value > _SURE * self.error

    def __str__(self) -> str:
        places = 0 if self.error >= 0.01 else 1
        return f"{100 * self.value:.{places}f} % ± {100 * max(self.error, 0.001):.{places}f}"


@dataclass(frozen=True)
class LoadAdvice:
    """What unequal micro-batches cost.

    Attributes:
        steps: Number of recorded iterations that say so.
        shorter: By how much shorter steps would be if all pipelines had equal work.
        saved: Energy that clocks from loads would save, relative to max clocks; None if that is not known, or
            nothing.
    """

    steps: int
    shorter: Share
    saved: Share | None

    @property
    def text(self) -> str:
        """For people."""
        text = (
            f"Micro-batches seem to differ in their work: in {self.steps} recorded iterations, their durations vary "
            f"together on all stages. Balance batches first: with equal work for all pipelines, iterations would be "
            f"{self.shorter} shorter."
        )
        if self.saved is None:
            return text
        return (
            f"{text} If batches stay as they are, clocks from loads would save {self.saved} of the energy that "
            f"max clocks take, by the job's profile: {LINK}"
        )


def load_advice(data: JobData) -> LoadAdvice | None:
    """Returns what unequal micro-batches cost a job; None if it has loads, or if what was recorded shows nothing.

    Without a profile, only iterations at max clocks count; without a profile or a model, energies are not known.
    """
    if data.loads is not None or data.job.job_info.dp_degree < 2:
        return None
    try:
        dag = dag_of(data)
    except PlanError:
        return None
    if dag is None:
        return None
    profile = _profile(data, dag)
    recorded = _recorded_steps(data, profile)
    return _Played(dag, recorded, profile, data.model).advice if len(recorded) >= _LEAST_STEPS else None


def _profile(data: JobData, dag: Pipeline) -> Profile | None:
    """The job's measurements as curves over all clocks that its GPUs offer; None while there are none."""
    if data.profile_csv is None:
        return None
    clocks = {
        stage: sorted(info.available_frequencies, reverse=True)
        for info in data.pipeline_ranks(0)
        for _, stage in data.orders[info.rank]
    }
    try:
        points = points_of(data.profile_csv, "profile.csv")
        return Curves(Samples(points), sorted({(i.stage, i.name) for i in dag.instructions}), clocks).profile(
            "the job's profile", EVERYTHING
        )
    except PlanError:
        return None


class _Played:
    """Recorded iterations, played with what loads make of them."""

    def __init__(
        self, dag: Pipeline, recorded: Sequence[Array], profile: Profile | None, model: ModelBody | None
    ) -> None:
        self._recorded = recorded
        self._names = sorted({(i.stage, i.name) for i in dag.instructions})
        self._kinds: Array = np.array([self._names.index((i.stage, i.name)) for i in dag.instructions])
        self._shape = StepShape.of(dag)
        table = by_micro_batch(np.array(recorded), self._kinds, self._shape.micro_batch)
        table /= table.mean(axis=(0, 1, 2))
        loads, self._together = shown_loads(table / _permanently_slow(table))
        self._loads: Array = loads[..., None]
        self._overhead_s, self._waiting_w = 0.0, 0.0
        self._rows: dict[int, list[Measurement]] = {}
        known = model is not None and math.isfinite(model.overhead_s) and 0 < model.blocking_power_w < math.inf
        if model is not None and profile is not None and known:
            self._overhead_s, self._waiting_w = model.overhead_s, model.blocking_power_w
            self._rows = self._known(profile)
        clocks = Clocks(list(self._rows) or [1], self._least_mhz(), CHANGE_S)
        self._choice = LoadChoice(self._shape, clocks)
        ends_s, pipelines = [self._shape.ends_s(times_s) for times_s in recorded], recorded[0].shape[1]
        for one, each in zip(self._loads[:-1], ends_s[:-1], strict=True):
            self._choice.durations.add(one, each, np.zeros(pipelines))
        self._choice.steps = _LEAST_STEPS - 1  # the model is fitted once, to all, with the last one
        self._choice.learn(self._loads[-1], ends_s[-1], [clocks.offered_mhz[0]] * pipelines)

    @property
    def advice(self) -> LoadAdvice | None:
        """What unequal micro-batches cost; None if they do not look unequal, or cost nothing that is sure."""
        if self._together <= _TOGETHER or not self._choice.explains:
            return None
        shorter = self._shorter()
        if not shorter.is_sure or shorter.value < LEAST_BALANCED:
            return None
        saved = self._saved() if self._rows else None
        return LoadAdvice(len(self._recorded), shorter, saved if saved is not None and saved.is_sure else None)

    def _shorter(self) -> Share:
        """By how much shorter steps would be with equal work, of what loads explain: noise cannot be balanced."""
        durations = self._choice.durations
        due_s = [durations.ends_s(one).max(axis=0) for one in self._loads]
        # A worker that is permanently slow stays slow.
        equal_s = [float((each / durations.pace).mean() * durations.pace.max()) for each in due_s]
        rest_s = self._overhead_s
        return _share([each + rest_s for each in equal_s], [float(each.max()) + rest_s for each in due_s])

    def _known(self, profile: Profile) -> dict[int, list[Measurement]]:
        """By falling clock, what is known of each kind; clocks of which all kinds are known."""
        tables = [{row.frequency_mhz: row for row in profile.measurements[name]} for name in self._names]
        common = set.intersection(*map(set, tables))
        return {mhz: [table[mhz] for table in tables] for mhz in sorted(common, reverse=True)}

    def _least_mhz(self) -> int:
        """The clock at which all kinds together surely take least energy beyond that of waiting."""

        def beyond_j(mhz: int) -> float:
            return sum(row.energy_j + row.energy_spread_j - self._waiting_w * row.time_s for row in self._rows[mhz])

        return min(self._rows, key=beyond_j, default=1)

    def _saved(self) -> Share:
        """Energy that clocks from loads would save, between the margin at which they begin and none."""
        choice, begins_at, top = self._choice, self._choice.margin, max(self._rows)
        played = max(_LEAST_STEPS, _MOST_PLAYED // len(self._kinds))
        loads, recorded = self._loads[:played], self._recorded[:played]
        highest_j = [self._energy_j(each, [top] * each.shape[1])[0] for each in recorded]
        ends: list[Share] = []
        unsure_j = 0.0
        for choice.margin in (0.0, begins_at):
            chosen = [choice.choose(one) for one in loads]
            found = [self._energy_j(*each) for each in zip(recorded, chosen, strict=True)]
            ends.append(_share([energy_j for energy_j, _ in found], highest_j))
            unsure_j = max(unsure_j, float(sum(each for _, each in found)))
        most, least = ends
        errors = max(most.error, least.error), (most.value - least.value) / 2, unsure_j / sum(highest_j)
        return Share((most.value + least.value) / 2, math.hypot(*errors))

    def _energy_j(self, times_s: Array, mhz: Sequence[int]) -> tuple[float, float]:
        """Energy of a step if pipelines run at these clocks, of one GPU for each rank, and its error, in J."""
        top, rows = self._rows[max(self._rows)], [self._rows[one] for one in mhz]
        longer: Array = np.array([[one.time_s / its.time_s for one, its in zip(row, top, strict=True)] for row in rows])
        powers_w: Array = np.array([[one.energy_j / one.time_s for one in row] for row in rows])
        unsure: Array = np.array([[one.energy_spread_j / one.energy_j for one in row] for row in rows])
        ran_s = times_s * longer.T[self._kinds]
        drawn_j = ran_s * powers_w.T[self._kinds]
        step_s = float(self._shape.ends_s(ran_s).max()) + self._overhead_s
        waited_s = self._shape.ranks * step_s * len(mhz) - float(ran_s.sum())
        # Errors of one kind of instruction are alike at all clocks.
        of_kinds_j = np.bincount(self._kinds, (drawn_j * unsure.T[self._kinds]).sum(axis=1))
        return float(drawn_j.sum()) + self._waiting_w * waited_s, float((of_kinds_j**2).sum() ** 0.5)


def _permanently_slow(table: Array) -> Array:
    """By how many times each kind takes as long on a pipeline, where chance does not make its work so: (1, pipelines,
    kinds)."""
    works = table.mean(axis=1)
    paces = works / works.mean(axis=1, keepdims=True)
    pace: Array = paces.mean(axis=0)
    return np.where(np.abs(pace - 1) > _BEYOND_CHANCE * paces.std(axis=0, ddof=1) / len(paces) ** 0.5, pace, 1.0)


def _share(less: Sequence[float], than: Sequence[float]) -> Share:
    """1 - sum(less) / sum(than), and its standard error from how steps scatter."""
    ratio, count = sum(less) / sum(than), len(than)
    squares = sum((a - ratio * b) ** 2 for a, b in zip(less, than, strict=True))
    return Share(max(0.0, 1 - ratio), math.sqrt(count / (count - 1) * squares) / sum(than))


# ---- the recorded iterations, as they would be at max clocks


def _recorded_steps(data: JobData, profile: Profile | None) -> list[Array]:
    """Returns durations in s, (nodes, pipelines), of the latest iterations that all pipelines recorded.

    Nodes are in the order of the ranks' instructions. Empty if pipelines run different instructions, or if ranks are
    missing.

    Args:
        profile: It says how durations follow the clock; None: only those at the highest clock count.
    """
    pipelines = _pipelines(data)
    per_step = sum(len(data.orders[info.rank]) for info in pipelines[0]) * len(pipelines) if pipelines else 0
    if not per_step:
        return []
    found: list[Array] = []
    most = max(_LEAST_STEPS, min(_STEPS, _MOST_VALUES // per_step))
    for window in reversed(data.windows):
        if window.measured is not None and len(found) < most:
            found += islice(_of_window(data, window, pipelines, profile), most - len(found))
    return found


def _pipelines(data: JobData) -> list[list[RankInfo]]:
    """The first rank of each stage, by pipeline; empty if one is missing, or runs something else than its stage."""
    degree = data.job.job_info.dp_degree
    orders = [data.pipeline_orders(pipeline) for pipeline in range(degree)]
    alike = bool(orders[0]) and all(order == orders[0] for order in orders)
    return [data.pipeline_ranks(pipeline) for pipeline in range(degree)] if alike else []


def _of_window(
    data: JobData, window: Window, pipelines: Sequence[Sequence[RankInfo]], profile: Profile | None
) -> Iterator[Array]:
    """The iterations of one window, the latest first; none if durations at its clocks cannot be compared."""
    results = results_of(data, window.number, [info for infos in pipelines for info in infos])
    columns: list[dict[int, list[float]]] = []
    for infos in pipelines:
        by_step: list[dict[int, list[float]]] = []
        for info in infos:
            if info.rank not in results:
                return
            result, ran = results[info.rank].result, data.entries(info.rank, window)
            longer = [_longer(info, name, stage, profile) for name, stage, _ in ran]
            steps, rows = steps_of(result), {}
            for number, runs in numbered_iterations(result, ran):
                clocks = [run.clock_mhz or mhz for run, (_, _, mhz) in zip(runs, ran, strict=True)]
                rows[steps[number]] = [run.time_s / at(mhz) for run, at, mhz in zip(runs, longer, clocks, strict=True)]
            by_step.append(rows)
        common = set.intersection(*map(set, by_step))
        columns.append({step: [time_s for rows in by_step for time_s in rows[step]] for step in common})
    for step in sorted(set.intersection(*map(set, columns)), reverse=True):
        times_s: Array = np.array([column[step] for column in columns]).T
        if np.isfinite(times_s).all() and (times_s > 0).all():
            yield times_s


def _longer(info: RankInfo, name: str, stage: int, profile: Profile | None) -> Callable[[int], float]:
    """From a clock to how many times as long an instruction takes as at the highest one; NaN: that is not known."""
    top_mhz = max(info.available_frequencies, default=0)
    rows = profile.measurements.get((stage, name), ()) if profile is not None else ()
    clocks, times_s = [row.frequency_mhz for row in rows[::-1]], [row.time_s for row in rows[::-1]]

    @cache
    def times_longer(mhz: int) -> float:
        if mhz in (0, top_mhz):
            return 1.0
        return float(np.interp(mhz, clocks, times_s, left=np.nan)) / times_s[-1] if rows else math.nan

    return times_longer
