"""The job in the form that the planner uses: the DAG of its instructions, its profile, and calibrated delays."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

from pfo_fs.autotune.samples import RunInstruction, iterations_of
from pfo_fs.autotune.window_results import span_of
from pfo_fs.errors import Impossible
from pfo_fs.models import ProfilingResult
from pfo_fs.planner import (
    Calibration,
    Instruction,
    MeasuredIteration,
    Measurement,
    Pipeline,
    Plan,
    Planner,
    Problem,
    Profile,
    SwitchCosts,
    all_maximum,
    calibrate,
    pipeline_from_orders,
)

_MOST_CACHED_PLANS = 32
_COUNTED_AS = {
    "backward": ("gradient",),
    "backward_input": ("gradient",),
    "forward_backward": ("gradient", "recomputation"),
}
"""Instructions of a stage that are counted together, since a micro-batch has one of them."""
_SAME_TIME = 0.002
"""Relative: clocks whose times differ by less count as one clock; on a GPU below its limits 15 MHz make 1 %."""
_MOST_SLOWDOWN_BY_CHANGES = 0.0005
"""Relative: clock changes may make the fastest plan slower than full speed by at most this."""


def pipeline_of(orders: Sequence[Sequence[tuple[str, int]]]) -> Pipeline:
    """Returns the DAG of what the ranks run: the n-th forward of a stage is that of micro-batch n.

    So is the n-th gradient, whether it is a `backward`, a `backward_input`, or a `forward_backward`, which computes its
    forward again. The n-th `backward_weight` belongs to the n-th `backward_input`.

    Args:
        orders: For each rank of a pipeline, its (instruction, stage) in order.

    Raises:
        PlanError: The instructions cannot run in these orders.
    """
    numbered = []
    for order in orders:
        seen: Counter[tuple[str, int]] = Counter()
        split: dict[int, list[int]] = defaultdict(list)
        row = []
        for name, stage in order:
            counted = _COUNTED_AS.get(name, (name,))
            microbatch = seen[counted[0], stage]
            if name == "backward_input":
                split[stage].append(microbatch)
            elif name == "backward_weight" and microbatch < len(split[stage]):
                microbatch = split[stage][microbatch]
            row.append((stage, name, microbatch))
            seen.update((each, stage) for each in counted)
        numbered.append(row)
    return pipeline_from_orders(numbered, name="as it runs")


def measured_iteration(
    pipeline: Pipeline, results: Sequence[ProfilingResult], ran_by_stage: Sequence[Sequence[RunInstruction]]
) -> MeasuredIteration | None:
    """Returns the mean over a window of one pipeline's iterations; None if a rank has no complete one.

    Args:
        pipeline: The DAG.
        results: The result of each of its ranks.
        ran_by_stage: The instructions that each of them ran.
    """
    times: dict[Instruction, float] = {}
    for order, result, ran in zip(pipeline.orders, results, ran_by_stage, strict=True):
        rows = list(iterations_of(result, ran))
        if not rows:
            return None
        for position, instruction in enumerate(order):
            times[instruction] = fmean(row[position][0] for row in rows)
    return MeasuredIteration(times, max(span_of(result) for result in results), {})


class JobModel:
    """Makes plans for one pipeline of a job, and keeps the latest.

    Args:
        pipeline: The DAG.
        profile: Time and energy of its instructions.
        blocking_power_w: Power of a waiting GPU, in W.
        gpus_per_rank: Tensor-parallel degree.
        iterations: Measured iterations, of different schedules, to calibrate with; with fewer than two, delays are 0.
        switch_costs: What a clock change costs.

    Attributes:
        calibration: The delays that were added to the DAG; None if there are none.
        full_speed: The plan with all instructions at the highest clock.
        time_margin: The planner assumes that slowed instructions take longer than measured by this share. At full
            speed most instructions have slack, which absorbs jitter and late clock changes; a plan uses the slack up,
            and the margin gives some of it back.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        profile: Profile,
        blocking_power_w: float,
        gpus_per_rank: int,
        iterations: Sequence[MeasuredIteration],
        switch_costs: SwitchCosts,
    ) -> None:
        self.time_margin = 0.0
        self.calibration: Calibration | None = None
        profile = _without_plateaus(profile, pipeline)
        problem = Problem(pipeline, profile, blocking_power_w, gpus_per_rank=gpus_per_rank, switch_costs=switch_costs)
        if len(iterations) >= 2:
            self.calibration = calibrate(pipeline, iterations)
            problem = self.calibration.problem(problem)
        self.problem = problem
        self.full_speed = all_maximum(problem)
        self._planners: dict[float, Planner] = {}
        self._plans: dict[tuple[str, float, float], Plan] = {}

    @property
    def planner(self) -> Planner:
        """The planner, with the time margin."""
        if self.time_margin not in self._planners:
            self._planners.clear()
            problem = replace(self.problem, profile=_with_time_margin(self.problem.profile, self.time_margin))
            # Under a board's power limit, high clocks take the same time, the best one differs by instruction, and
            # every plan changes clocks: these changes must not make it slower than full speed.
            for switch_costs in _falling(problem.switch_costs):
                planner = Planner(replace(problem, switch_costs=switch_costs), thorough=False)
                if planner.fastest_s <= self.full_speed.iteration_time_s * (1 + _MOST_SLOWDOWN_BY_CHANGES):
                    break
            self._planners[self.time_margin] = planner
        return self._planners[self.time_margin]

    def within(self, deadline_s: float, straggler: bool = False) -> Plan:
        """Returns the plan for a deadline, or for a straggler's time; the fastest plan if none is fast enough."""
        key = (
            "straggler" if straggler else "deadline",
            round(deadline_s / self.full_speed.iteration_time_s, 4),
            self.time_margin,
        )
        if key not in self._plans:
            wanted_s = max(deadline_s, self.planner.fastest_s)
            self._keep(key, self.planner.at(straggler=wanted_s) if straggler else self.planner.at(deadline=wanted_s))
        return self._plans[key]

    def at_power(self, power_w: float) -> Plan:
        """Returns the fastest plan that draws at most `power_w` over all GPUs, or else the plan that draws least."""
        key = "power", round(power_w, 1), 0.0
        if key not in self._plans:
            try:
                plan = self.planner.at(power=power_w)
            except Impossible as error:
                plan = self.planner.at(power=error.best * (1 + 1e-9))
            self._keep(key, plan)
        return self._plans[key]

    def _keep(self, key: tuple[str, float, float], plan: Plan) -> None:
        """Keeps a plan, evaluated without the time margin."""
        if len(self._plans) >= _MOST_CACHED_PLANS:
            del self._plans[next(iter(self._plans))]
        self._plans[key] = plan.replace(problem=replace(self.problem, switch_costs=plan.problem.switch_costs))


def _falling(costs: SwitchCosts) -> list[SwitchCosts]:
    """The costs, then the same with a tenth of the time for which a GPU stands still, and with none of it."""
    shares = (1.0, 0.1, 0.0) if costs.stands_still_s else (1.0,)
    return [replace(costs, stands_still_s=share * costs.stands_still_s) for share in shares]


def _without_plateaus(profile: Profile, pipeline: Pipeline) -> Profile:
    """Keeps one of the clocks that take the same time under a board's power limit, the same one for all of a rank.

    With all of them, noise would decide which one is best for each instruction, and the clock would change between any
    two instructions.
    """
    table = dict(profile.measurements)
    for order in pipeline.orders:
        kinds = sorted({(i.stage, i.name) for i in order})
        alike = {}
        for kind in kinds:
            top = max(table[kind], key=lambda m: m.frequency_mhz)
            alike[kind] = {m.frequency_mhz for m in table[kind] if m.time_s <= top.time_s * (1 + _SAME_TIME)}
        common = set.intersection(*alike.values())
        if not common:
            continue
        highest_mhz = min(common)  # higher ones really run at this clock; their times differ by noise only
        for kind in kinds:
            table[kind] = [
                m
                for m in table[kind]
                if m.frequency_mhz == highest_mhz
                or (m.frequency_mhz < highest_mhz and m.frequency_mhz not in alike[kind])
            ]
    return Profile(table, profile.source)


def _with_time_margin(profile: Profile, time_margin: float) -> Profile:
    """Returns a profile in which instructions below the highest clock take longer by the margin at the same power."""
    table = {}
    for kind, rows in profile.measurements.items():
        top = max(row.frequency_mhz for row in rows)
        table[kind] = [
            row
            if row.frequency_mhz == top
            else Measurement(row.frequency_mhz, row.time_s * (1 + time_margin), row.energy_j * (1 + time_margin))
            for row in rows
        ]
    return Profile(table, profile.source)
