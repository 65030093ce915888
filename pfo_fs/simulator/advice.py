"""What each remedy would save in a job of which only durations at default clocks are known, with an interval.

Why GPUs wait is found by adding one cause after the other: with equal stages, a pipeline has its bubbles only; then
stages are as unequal as they are on average; then slow workers come on top; then what varies among micro-batches.

What a remedy saves follows from these durations and from how time and power follow the clock: as the job has measured
it, or else as it has been published for training on this kind of GPU (A100, A40). For other kinds, both ends of the
interval come from what is published of any kind, and from work that waits for memory, so that the interval is wide.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NamedTuple

from pfo_fs.arrays import Array, np
from pfo_fs.device.simulated.physics import A100, TRAINING
from pfo_fs.planner import (
    Measurement,
    Pipeline,
    Problem,
    Profile,
    ScenarioPlanner,
    Scenarios,
    SwitchCosts,
    pipeline_from_orders,
)
from pfo_fs.planner.scenario_model import Played
from pfo_fs.simulator.traces import SLOW_WORKER
from pfo_fs.simulator.training_curves import Curves

SLOWDOWNS = (1.0, 1.01, 1.02, 1.05)
"""Longest mean time of a step, as a multiple of that at default clocks."""
_SCENARIOS, _PIPELINES, _CELLS = 16, 16, 65_536
"""At most 16 steps of at most 16 pipelines count, spread over the trace; fewer if they exceed 65,536 instructions."""
_LARGE, _ROUNDS = 4096, (2, 4)
"""Plans for more instructions in a pipeline take minutes: they are made for the micro-batches of two and of four rounds
through all ranks only. What bubbles save is the same in both, and each further micro-batch saves as much again, at most
the mean of those before: bubbles are a smaller share of a larger job."""
_MOSTLY = 0.75
"""A worker counts as slow if it is slow in three of four steps; a worker with more work in some steps does not."""
_SAME = 1e-9
"""Relative: times that differ by less are equal."""
_LATENCIES_S = 0.01, 0.03, 0.1
"""Times from a request until the clock acts: on nodes with A100s and older GPUs, on such nodes if the calls of eight
GPUs wait for each other, and at most on later GPUs."""
_IN_MEMORY = 0.5
"""Where nothing is known of GPUs and work, up to this share of what follows the clock may wait for memory instead: then
lower clocks cost less time, and save more. Bandwidth grows more slowly than computing from one kind to the next."""
_MOST_LATE = 0.001
"""Relative: plans get this much more time, as plans of full knowledge do in the benchmarks of running jobs."""
NOTABLE = 0.02
"""If GPUs wait for more than this share of all time because stages or loads are unequal, they come first."""
_DELIVERED = {"plan": (0.95, 1.05), "ranks": (0.95, 1.05), "loads": (0.75, 1.05), "limit": (0.9, 1.05)}
"""The least and the most that remedies deliver of what is computed here. Plans: 0.96 to 1.0 on traces and drawn jobs
whose steps are alike. Clocks from loads: 0.86 to 0.91. A power limit is one clock for all, which leaves little to go
wrong."""
_LEFT, _LEFT_OF_SCATTER = 0.005, 0.5
"""A plan may save half a point less, because a job settles when a trial would hardly tell whether more can be saved;
and half of the scatter of steps less: the more these differ, the longer it takes to tell that a plan is in time. So a
clock per instruction is named only if it may save half a point more than a clock per rank."""
_DELIVERED_UNKNOWN = {"plan": (0.2, 1.25), "ranks": (0.2, 1.25), "loads": (0.2, 1.05), "limit": (0.05, 1.05)}
"""The same on GPUs whose curve is not known: newer kinds save less (energies of a B300 and an RTX PRO 6000: 0.7 to 0.9
of an A100's), and those that a power limit holds far below the highest clock have saved most of it already (a Hopper at
1,500 of 1,980 MHz, simulated: a third to a fifth)."""


class Interval(NamedTuple):
    """An energy saving, relative. Of jobs never seen before, 20 of 22 saved an amount inside it on simulated A100s, and
    14 of 22 on A40s, which are at their power limit: most of the others saved less."""

    low: float
    high: float


class Remedy(NamedTuple):
    """What saves energy.

    Attributes:
        name: `plan` (a clock per instruction), `ranks` (a clock per rank, where clocks cannot follow the device),
            `loads` (a clock per pipeline and step, from its load), or `limit` (one power limit for all GPUs).
        saved: What it saves at each of `SLOWDOWNS`.
    """

    name: str
    saved: tuple[Interval, ...]


class Wait(NamedTuple):
    """A cause of waiting.

    Attributes:
        cause: Name of the cause.
        share: Share of all time for which GPUs wait because of it.
        shorter: By how much shorter steps would be without it, relative; 0.0 for a pipeline's bubbles.
        where: The longest stage, or the slow pipelines, as text; of other causes, ''.
    """

    cause: str
    share: float
    shorter: float
    where: str = ""


class Advice(NamedTuple):
    """What is known of a job before any clock was set.

    Attributes:
        step_s: Mean time of a step, without what comes after its last instruction, in s.
        waits: Why GPUs wait.
        remedies: What would save energy.
        balanced: What would save energy in steps of the same length if stages and loads were equal, as moved layers and
            a balancing scheduler make them; empty if they are.
        curves: How training on these GPUs follows the clock: "measured", "published" for their kind, or "unknown".
    """

    step_s: float
    waits: list[Wait]
    remedies: list[Remedy]
    balanced: list[Remedy]
    curves: str

    @property
    def most(self) -> float:
        """The highest saving that may be had without more time, relative."""
        return max(one.saved[0].high for one in self.remedies)


def advise(
    pipeline: Pipeline,
    full_s: Array,
    gpu: str,
    measured: Curves | None = None,
    follows: bool = True,
    track: Callable[[list[Any]], Iterable[Any]] = iter,
) -> Advice:
    """Returns what would save energy in a job.

    Args:
        pipeline: The instructions that each pipeline runs.
        full_s: Durations at default clocks in s, (steps, nodes as in `Pipeline.instructions`, pipelines).
        gpu: Name of its GPUs; a kind without a published curve gets wide intervals.
        measured: The curves of all instructions, if the job has measured them.
        follows: Whether clocks can follow the device, as far as is known.
        track: Goes through all plans that are to be made, for example with a bar that shows progress.
    """
    names = {one.name for one in pipeline.instructions}
    measured = measured if measured and names <= measured.rows.keys() else None
    most = max(1, _CELLS // len(pipeline.instructions))
    full_s = full_s[:, :, : min(_PIPELINES, most)]
    count = min(_SCENARIOS, max(1, most // full_s.shape[2]))
    full_s = full_s[np.unique(np.linspace(0, len(full_s) - 1, count).round().astype(int))]
    published = [model for name, model in TRAINING.items() if re.search(rf"\b{name}\b", gpu.upper())]
    quick_s, queued_s, late_s = _LATENCIES_S
    # If instructions end before a queued call acts, a job learns slowly when clocks act, and may save little.
    slow_s = queued_s if published and full_s.mean() > queued_s else late_s
    if measured:
        cases = [(measured, slow_s), (measured, quick_s)]
    elif published:
        model, at_limit = Curves.of_model(published[0], names), Curves.at_limit(published[0], names)
        cases = [(model, slow_s), (at_limit or model, quick_s)]
    else:
        cases = [(Curves.of_model(model, names), late_s) for model in TRAINING.values()]
        cases.append((Curves.of_model(A100, names, _IN_MEMORY), quick_s))
    offered = ("plan", "ranks") if follows else ("ranks",)
    jobs = [_Job(pipeline, full_s, one, latency_s, offered) for one, latency_s in cases]
    waits, is_known = jobs[0].waits(), bool(measured or published)
    unequal, uneven = waits[1].share > NOTABLE, waits[-1].share > NOTABLE
    even_s = jobs[0].evened_s(unequal, uneven)
    even = [_Job(pipeline, even_s, job.curves, job.latency_s, offered) for job in jobs] if unequal or uneven else []
    todo = [(job, slowdown) for job in jobs for slowdown in SLOWDOWNS] + [(job, SLOWDOWNS[0]) for job in even]
    for job, slowdown in track(todo):
        job.plan(slowdown)
    waiting = waits[2].share + waits[3].share > NOTABLE  # pipelines wait for each other, for slow workers or loads
    remedies = [one for one in _remedies(jobs, is_known) if one.name != "loads" or waiting]
    known = "measured" if measured else "published" if published else "unknown"
    balanced = [one._replace(saved=one.saved[:1]) for one in _remedies(even, is_known)] if even else []
    return Advice(jobs[0].step_s, waits, remedies, balanced, known)


def _remedies(jobs: Sequence[_Job], known: bool) -> list[Remedy]:
    found = [job.saved() for job in jobs]
    remedies = []
    for name in found[0]:
        low, high = (_DELIVERED if known else _DELIVERED_UNKNOWN)[name]
        left = _LEFT + _LEFT_OF_SCATTER * jobs[0].scatter if name in ("plan", "ranks") else 0.0
        saved = zip(*(of_job[name] for of_job in found), strict=True)
        remedies.append(
            Remedy(name, tuple(Interval(max(0.0, low * min(of) - left), high * max(0.0, *of)) for of in saved))
        )
    most = {one.name: one.saved[0].high for one in remedies}
    is_more = "plan" in most and most["plan"] > most["ranks"] + _LEFT
    return [one for one in remedies if one.name != "plan" or is_more]


class _Job:
    """The steps of a job on one kind of GPU, whose clocks act `latency_s` late.

    Attributes:
        slow: Which pipelines are permanently slow.
        healthy_s: Durations if all work were equal, and no worker slow, in s; shape as `full_s`.
        balanced_s: The same with slow workers.
        parts: The jobs that plans are made for: the first micro-batches of a large job, or the job itself.
        step_s, scatter: Mean time of a step in s, and its standard deviation, relative.
        planned_j: What its own plans of each name save of a step's energy, one for each of `SLOWDOWNS`, in J.
    """

    def __init__(
        self, pipeline: Pipeline, full_s: Array, curves: Curves, latency_s: float, offered: Collection[str]
    ) -> None:
        self.curves, self.latency_s, nodes = curves, latency_s, pipeline.instructions
        self.kinds = [(one.stage, one.name) for one in nodes]
        lengths_s = dict(zip(self.kinds, _mean_of(self.kinds, full_s)[0, :, 0].tolist(), strict=True))
        rows = {
            kind: [
                Measurement(m.frequency_mhz, m.time_s * length_s, m.energy_j * length_s) for m in curves.rows[kind[1]]
            ]
            for kind, length_s in lengths_s.items()
        }
        costs = SwitchCosts(latency_s=latency_s, timing_error_s=latency_s / 2)
        problem = Problem(pipeline, Profile(rows), curves.blocking_power_w, switch_costs=costs)
        of_stages = _sums(np.array([one.stage for one in nodes]), full_s.transpose(1, 0, 2))
        beside = of_stages / np.median(of_stages, axis=2, keepdims=True)  # (stages, steps, pipelines)
        self.slow = (np.quantile(beside, 1 - _MOSTLY, axis=1) > SLOW_WORKER).any(axis=0)
        if self.slow.all():  # each has a slow stage: no healthy pipeline is left to compare with
            self.slow[:] = False
        groups = np.where(self.slow, np.cumsum(self.slow), 0)
        of_pipelines = _mean_of(self.kinds, full_s, of_pipelines=True)
        healthy_s = of_pipelines[:, :, ~self.slow].mean(axis=2, keepdims=True)
        self.healthy_s: Array = np.broadcast_to(healthy_s, full_s.shape)
        self.balanced_s: Array = np.where(self.slow, of_pipelines, healthy_s)
        self.scenarios = Scenarios(problem, full_s, groups.tolist())
        self.spans_s = self.scenarios.spans_s()
        steps_s = self.spans_s.max(axis=1)
        self.step_s = float(steps_s.mean())
        self.scatter = float(steps_s.std()) / self.step_s
        self.full_j = self.scenarios.energy_j()
        self.planned_j: dict[str, list[float]] = {name: [] for name in offered}
        self.parts = [self if part is pipeline else self._of(part) for part in _parts(pipeline)]
        self._planner = ScenarioPlanner(self.scenarios, most_walks=0)  # descents take long, and gain 0.1 points

    def _of(self, part: Pipeline) -> _Job:
        """The same job with only the micro-batches of a part of its pipeline."""
        pipeline, full_s = self.scenarios.problem.pipeline, self.scenarios.full_s
        rows = [pipeline.position[one] for one in part.instructions]
        return _Job(part, full_s[:, rows], self.curves, self.latency_s, self.planned_j)

    def evened_s(self, stages: bool, loads: bool) -> Array:
        """Durations with equal stages, equal loads, or both, in s; shape as `full_s`."""
        times_s: Array = self.balanced_s if loads else self.scenarios.full_s
        equal_s = _mean_of([name for _, name in self.kinds], self.healthy_s)
        return times_s * (equal_s / self.healthy_s) if stages else times_s

    def waits(self) -> list[Wait]:
        """For which share of all time GPUs wait, by cause."""
        full_s, problem = self.scenarios.full_s, self.scenarios.problem
        steps: dict[str, Array] = {  # each holds one cause more
            "pipeline bubbles": _mean_of([name for _, name in self.kinds], self.healthy_s),
            "unequal stages": self.healthy_s,
            "slow workers": self.balanced_s,
            "unequal loads": full_s,
        }
        of_stages = _sums(np.array([stage for stage, _ in self.kinds]), self.healthy_s[0])
        slow = ", ".join(map(str, np.flatnonzero(self.slow)))
        where = {"unequal stages": f"stage {of_stages[:, 0].argmax()}", "slow workers": slow and f"pipelines: {slow}"}
        found: list[Wait] = []
        before = before_s = 0.0
        for cause, times_s in steps.items():
            step_s = float(Scenarios(problem, times_s, range(times_s.shape[2])).iteration_times_s().mean())
            gpu_s = len(problem.pipeline.orders) * times_s.shape[2] * len(times_s) * step_s
            waiting = 1 - float(times_s.sum()) / gpu_s
            shorter = max(0.0, 1 - before_s / step_s) if found else 0.0
            found.append(Wait(cause, max(0.0, waiting - before), shorter, where.get(cause, "")))
            before, before_s = max(before, waiting), step_s
        return found

    def plan(self, slowdown: float) -> None:
        """Makes the next plans, of this slowdown."""
        for job in self.parts:
            ways = {"plan": job._planner.at, "ranks": job._planner.one_clock_per_rank}
            for name, planned_j in job.planned_j.items():
                clocks = ways[name]((slowdown + _MOST_LATE) * job.step_s)
                planned_j.append(job.full_j - job.scenarios.energy_j(clocks))

    def saved(self) -> dict[str, list[float]]:
        """What each remedy saves at each slowdown, if all is known."""
        scenarios, found = self.scenarios, {}
        uniform = [scenarios.play(np.full((scenarios.nodes, scenarios.count), number)) for number in self._numbers]
        in_time = [
            [one.energy_j for one in uniform if one.mean_s <= (slowdown + _MOST_LATE) * self.step_s]
            for slowdown in SLOWDOWNS
        ]
        limit = [1 - min(energies_j) / self.full_j for energies_j in in_time]
        if len(scenarios.problem.pipeline.orders) > 1:
            counts = [job.scenarios.nodes for job in self.parts]
            last, slope = self.parts[-1], (scenarios.nodes - counts[-1]) / max(1, counts[-1] - counts[0])
            for name in self.planned_j:
                pairs = zip(self.parts[0].planned_j[name], last.planned_j[name], limit, strict=False)
                found[name] = [
                    max(same, min((more_j + slope * (more_j - less_j)) / self.full_j, more_j / last.full_j))
                    for less_j, more_j, same in pairs
                ]
        if scenarios.pipelines > 1:
            found["loads"] = [1 - self._by_loads_j(uniform, slowdown) / self.full_j for slowdown in SLOWDOWNS]
        return {**found, "limit": limit}

    @property
    def _numbers(self) -> list[int]:
        """The clocks as positions."""
        return [self.scenarios.table.number[mhz] for mhz in self.curves.clocks_mhz]

    def _by_loads_j(self, uniform: Sequence[Played], slowdown: float) -> float:
        """Mean energy of a step in J if each pipeline runs at the clock at which it ends with the slowest pipeline."""
        scenarios, table = self.scenarios, self.scenarios.table
        most_s = slowdown * self.spans_s.max(axis=1, keepdims=True)
        least_j: Array = np.full(self.spans_s.shape, np.inf)
        for number, played in zip(self._numbers, uniform, strict=True):
            cost_w = table.cost_w[table.kind, number][:, None]
            work_j = (scenarios.durations_s * cost_w).sum(axis=0).reshape(least_j.shape)
            fits = played.spans_s <= most_s * (1 + _SAME)
            least_j = np.where(fits & (work_j < least_j), work_j, least_j)
        waiting_j: float = scenarios.waiting_power_w * slowdown * self.step_s
        return float(least_j.sum(axis=1).mean()) + waiting_j


def _parts(pipeline: Pipeline) -> list[Pipeline]:
    """The pipelines that plans are made for."""
    orders = pipeline.orders
    if len(pipeline.instructions) <= _LARGE:
        return [pipeline]
    return [
        pipeline_from_orders([[one for one in order if one.microbatch < rounds * len(orders)] for order in orders])
        for rounds in _ROUNDS
    ]


def _sums(places: Array, values: Array) -> Array:
    """Sums of the rows of each place."""
    return np.array([values[places == place].sum(axis=0) for place in range(places.max() + 1)])


def _mean_of(keys: Sequence[object], full_s: Array, *, of_pipelines: bool = False) -> Array:
    """Durations, each replaced by the mean of all durations with its key, or of those of its pipeline only."""
    found: Array = np.empty_like(full_s)
    for key in set(keys):
        rows = np.array([one == key for one in keys])
        found[:, rows] = full_s[:, rows].mean(axis=(0, 1) if of_pipelines else None)
    return found
