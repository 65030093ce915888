"""The result of a simulated job: when plans were in force, and the true time and energy of its plan, without noise."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean

from pfo_fs.simulator.cluster import Cluster, Played
from pfo_fs.simulator.play import Iteration, Play
from pfo_fs.simulator.ranks import RankSchedules
from pfo_fs.store import bodies


@dataclass
class Summary:
    """A simulated job.

    Attributes:
        deployed_at: First iteration under a plan; None if no plan was applied.
        plan_number: Number of the plan that was in force last; plans for stragglers do not count.
        settled: Whether the scheduler has measured the last schedule of the run and keeps it.
        profiling_steps: Number of iterations before the first plan and in measuring windows.
        full_time_s, full_energy_j: Time and energy of an iteration at max clocks, without noise; if durations
            vary, the mean over the iterations by which plans are judged (`Variation.judged`).
        plan_time_s, plan_energy_j: The same under the last plan.
        worst_step_late: Additional time of the slowest of these iterations under the last plan, relative.
        overhead_s, overhead_j: Total time and energy of the profiling iterations beyond those of max clocks.
        time_s, energy_j: Time and energy of the whole run, noise included.
        full_run_time_s, full_run_energy_j: The same at max clocks, with the same variation and noise.
    """

    iterations: int
    deployed_at: int | None
    plan_number: int | None
    settled: bool
    schedules: int
    profiling_steps: int
    full_time_s: float
    full_energy_j: float
    plan_time_s: float
    plan_energy_j: float
    worst_step_late: float
    overhead_s: float
    overhead_j: float
    time_s: float
    energy_j: float
    full_run_time_s: float
    full_run_energy_j: float
    status_text: str

    @property
    def energy_saved(self) -> float:
        """Energy that the plan saves in an iteration, relative."""
        return 1 - self.plan_energy_j / self.full_energy_j

    @property
    def slowdown(self) -> float:
        """Additional time of an iteration under the plan, relative: 0.01 is 1 % longer."""
        return self.plan_time_s / self.full_time_s - 1

    @property
    def run_saved(self) -> float:
        """Energy that the whole run has saved against max clocks on the same data, relative."""
        return 1 - self.energy_j / self.full_run_energy_j if self.full_run_energy_j else 0.0

    @property
    def run_late(self) -> float:
        """Additional time of the whole run against max clocks on the same data, relative."""
        return self.time_s / self.full_run_time_s - 1 if self.full_run_time_s else 0.0

    def as_json(self) -> dict[str, object]:
        """All figures, by name."""
        ratios = "energy_saved", "slowdown", "run_saved", "run_late"
        return {**asdict(self), **{name: getattr(self, name) for name in ratios}}


def summarize(play: Play, played: Sequence[Iteration]) -> Summary:
    """Returns the result of a run."""
    cluster = play.cluster
    numbers = {iteration.number for iteration in played}
    known = numbers.intersection(play.folder.schedule_numbers())
    read = ((number, play.folder.read(bodies.IndexBody, number=number)) for number in known)
    indexes = {number: index for number, index in read if index is not None}
    # A schedule for measuring is limited to some steps.
    under_plan = [
        i for i in played if play.first_plan is not None and i.number >= play.first_plan and indexes[i.number].stays
    ]
    of_healthy = (i.number for i in reversed(under_plan) if not indexes[i.number].source.plan_inputs.slow_pipelines)
    last = next(of_healthy, None)
    judged = judged_iterations(cluster, [{}] * cluster.pipelines if last is None else play.schedules_of(last))
    steps = {i.step for i in under_plan}
    profiling = [i for i in played if i.step not in steps]
    current = play.folder.read(bodies.CurrentBody)
    return Summary(
        iterations=len(played),
        deployed_at=under_plan[0].step if under_plan else None,
        plan_number=last,
        settled=bool(under_plan and current and current.converged and played[-1].number == current.number == last),
        schedules=1 + max(numbers, default=-1),
        profiling_steps=len(profiling),
        full_time_s=fmean(iteration.full_time_s for iteration in judged),
        full_energy_j=fmean(iteration.full_energy_j for iteration in judged),
        plan_time_s=fmean(iteration.time_s for iteration in judged),
        plan_energy_j=fmean(iteration.energy_j for iteration in judged),
        worst_step_late=max(iteration.time_s / iteration.full_time_s for iteration in judged) - 1,
        overhead_s=sum(i.time_s - i.full_time_s for i in profiling),
        overhead_j=sum(i.energy_j - i.full_energy_j for i in profiling),
        time_s=sum(i.time_s for i in played),
        energy_j=sum(i.energy_j for i in played),
        full_run_time_s=sum(i.full_time_s for i in played),
        full_run_energy_j=sum(i.full_energy_j for i in played),
        status_text=played[-1].status_text if played else "",
    )


_JUDGED = 16
"""If the work of a job does not vary, it is judged by this many iterations: lateness is then known to some 0.03 %."""


def judged_iterations(cluster: Cluster, schedules: RankSchedules, *, as_learned: bool = False) -> list[Played]:
    """Returns the iterations by which schedules are judged, from now on, with exact powers.

    Durations scatter as in the job, in the same way under all schedules: that alone makes a plan without slack late.

    Args:
        as_learned: Whether clocks are followed with what clock processes have learned so far; if not, they know all
            latencies, as after a long time.
    """
    varies = cluster.variation
    exact = replace(cluster, nuisances=replace(cluster.nuisances, power_jitter=0.0, warm_up=0.0), knows_latencies=True)
    if as_learned:
        exact.begin_from(cluster)
    steps = (1.0,) * _JUDGED if varies is None else varies.judged(cluster.iteration, cluster.seed)
    return exact.steady(exact.clocks_of(schedules), steps)
