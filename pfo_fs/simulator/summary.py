"""The result of a simulated job: when plans were in force, and the true time and energy of its plan, without noise."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from pfo_fs.models import PlanInputs
from pfo_fs.simulator.cluster import QUIET, Cluster, Episode
from pfo_fs.simulator.play import Iteration, Play


@dataclass
class EpisodeSummary:
    """How the plans followed one straggler.

    Attributes:
        slowdown, first, last, pipeline: The episode, as given.
        followed_after: Number of iterations from its begin until the others ran the plan for it; None if never.
        back_after: Number of iterations from its end until they ran another plan; None if not within the run.
        saved: Share of energy saved over the episode, against the plan in force before.
    """

    slowdown: float
    first: int
    last: int
    pipeline: int
    followed_after: int | None = None
    back_after: int | None = None
    saved: float | None = None


@dataclass
class Summary:
    """A simulated job.

    Attributes:
        iterations: Number of iterations.
        deployed_at: First iteration under a plan; None if no plan was applied.
        settled_at: First iteration under the plan that was in force longest.
        schedules: Number of schedules.
        full_time_s, full_energy_j: Time and energy of an iteration at the highest clocks, without noise.
        plan_time_s, plan_energy_j: Time and energy of an iteration under that plan, without noise.
        overhead_s, overhead_j: Total time and energy of profiling beyond those of the highest clocks.
        energy_j: Energy of the whole run, noise included.
        episodes: How plans followed the stragglers.
        status_text: The scheduler's last status.
    """

    iterations: int
    deployed_at: int | None
    settled_at: int | None
    schedules: int
    full_time_s: float
    full_energy_j: float
    plan_time_s: float
    plan_energy_j: float
    overhead_s: float
    overhead_j: float
    energy_j: float
    episodes: list[EpisodeSummary]
    status_text: str

    @property
    def energy_saved(self) -> float:
        """Energy that the plan saves in an iteration, relative."""
        return 1 - self.plan_energy_j / self.full_energy_j

    @property
    def slowdown(self) -> float:
        """Additional time of an iteration under the plan, relative: 0.01 is 1 % longer."""
        return self.plan_time_s / self.full_time_s - 1

    def as_json(self) -> dict[str, Any]:
        """All figures, by name."""
        return {**asdict(self), "energy_saved": self.energy_saved, "slowdown": self.slowdown}


def summarize(play: Play, played: Sequence[Iteration]) -> Summary:
    """Returns the result of a run.

    Args:
        play: The job after the run.
        played: All iterations of the run.
    """
    quiet = _quiet(play.cluster)
    idle: list[dict[int, Any]] = [{} for _ in range(quiet.pipelines)]
    full = quiet.settled(quiet.clocks_of(idle))
    plans = {number: plan_inputs for number, plan_inputs in _numbers(play) if number in {i.number for i in played}}
    settled = _settled(play, played, plans)
    plan = full
    deployed = None
    if settled is not None:
        plan = quiet.settled(quiet.clocks_of(play.schedules_of(settled)))
        deployed = next(i.step for i in played if i.number == play.first_plan)
    before = [i for i in played if deployed is None or i.step < deployed]
    full_time_s, full_energy_j = float(full.time_s), float(full.energy_j)
    return Summary(
        iterations=len(played),
        deployed_at=deployed,
        settled_at=next((i.step for i in played if i.number == settled), None),
        schedules=1 + max((i.number for i in played), default=-1),
        full_time_s=full_time_s,
        full_energy_j=full_energy_j,
        plan_time_s=float(plan.time_s),
        plan_energy_j=float(plan.energy_j),
        overhead_s=sum(i.time_s for i in before) - full_time_s * len(before),
        overhead_j=sum(i.energy_j for i in before) - full_energy_j * len(before),
        energy_j=sum(i.energy_j for i in played),
        episodes=[_follow(episode, played, plans) for episode in play.cluster.episodes],
        status_text=played[-1].status_text if played else "",
    )


def _quiet(cluster: Cluster) -> Cluster:
    odd = cluster.nuisances
    nuisances = replace(QUIET, switch_s=odd.switch_s, delay_s=odd.delay_s, overhead_s=odd.overhead_s)
    return Cluster(
        cluster.pipeline, cluster.truth, nuisances, cluster.pipelines, nodes=cluster.nodes, knows_latencies=True
    )


def _numbers(play: Play) -> Iterator[tuple[int, PlanInputs]]:
    for number in play.folder.schedule_numbers():
        index = play.folder.read_index(number)
        if index is not None:
            yield number, index.source.plan_inputs


def _settled(play: Play, played: Sequence[Iteration], plans: dict[int, PlanInputs]) -> int | None:
    """The plan without stragglers that was in force longest; of several, the last."""
    counts: dict[int, int] = {}
    for iteration in played:
        number = iteration.number
        if play.first_plan is not None and number >= play.first_plan and not plans[number].slow_pipelines:
            counts[number] = counts.get(number, 0) + 1
    return max(counts, key=lambda number: (counts[number], number), default=None)


def _follow(episode: Episode, played: Sequence[Iteration], plans: dict[int, PlanInputs]) -> EpisodeSummary:
    summary = EpisodeSummary(*episode)
    follows = {number for number, plan_inputs in plans.items() if episode.pipeline in plan_inputs.slow_pipelines}
    during = [i for i in played if episode.first <= i.step < episode.last]
    after = [i for i in played if i.step >= episode.last]
    summary.followed_after = next((i.step - episode.first for i in during if i.number in follows), None)
    summary.back_after = next((i.step - episode.last for i in after if i.number not in follows), None)
    blind = [i.energy_j for i in during if i.number not in follows]
    if blind:
        mean_j = sum(blind) / len(blind)
        summary.saved = 1 - sum(i.energy_j for i in during) / (mean_j * len(during))
    return summary
