"""What a job saves and how much slower it is now; and what that means, in a sentence."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from pfo_fs.models import FrequencySchedule, Target, share_text
from pfo_fs.reports.collect import JobData, JobState, collect_job
from pfo_fs.store import bodies, layout

MUCH_SLOWER = 0.01
"""Relative: people notice a slowdown of this much. `harm` adds what the target allows; red figures do not."""
_MOST_PIPELINES = 16
"""At most this many pipelines with clocks by hand are looked at."""
_OF_LOADS = 0.06
"""Relative: error of a step's time at max clocks as loads explain it; with a larger error, loads are not used."""
_LEAST_SLOWER = 0.001
"""Relative: a schedule by hand that costs less time beyond the target is not worth a warning."""


@dataclass(frozen=True)
class Verdict:
    """Figures against default clocks, relative, with two standard errors; None: not known.

    `allowed` is how much slower the target lets the job be. `by` decides the clocks: `scheduler`, `yaml`, `loads`.
    """

    saved: float | None = None
    saved_error: float = 0.0
    slower: float | None = None
    slower_error: float = 0.0
    allowed: float = 0.0
    by: str = ""

    @property
    def saved_text(self) -> str:
        """The share of energy: "8.6 ± 0.3 %"; a minus means that it takes more."""
        return _text(self.saved, self.saved_error, 1)

    @property
    def slower_text(self) -> str:
        """The share of time: "0.01 ± 0.02 %"; a minus means that it is faster."""
        return _text(self.slower, self.slower_error, 2)

    @property
    def harm(self) -> str:
        """Says that training is slower than the target allows, and what to do; empty if it is not."""
        beyond = _LEAST_SLOWER if self.by == "yaml" else MUCH_SLOWER
        if self.slower is None or self.slower - self.slower_error <= self.allowed + beyond:
            return ""
        allowed = f" (the target allows {100 * self.allowed:.3g} %)" if self.allowed >= _LEAST_SLOWER else ""
        what = "because of schedule.yaml: remove it" if self.by == "yaml" else "as was measured: wait for another plan"
        return f"training is {self.slower_text} slower than at default clocks{allowed}, {what}, or `pfo-fs off`"

    def sentence(self, state: JobState) -> str:
        """Returns what a person should know first: what is saved, what it costs, what to do next."""
        if state.job.coordination == "none":
            what = state.job.scheduler.replace("_", " ")
            return f"This job sets one {what} itself; `pfo-fs power-limit` shows what each level costs."
        if self.harm:
            return f"{self.harm[0].upper()}{self.harm[1:]}; energy saved: {self.saved_text}."
        energy = f"saves {self.saved_text} of the GPUs' energy"
        if self.saved is None:
            energy = "has not measured yet what it saves"
        elif abs(self.saved) <= self.saved_error:
            energy = f"saves no energy that can be measured ({self.saved_text})"
        elif self.saved < 0:
            energy = f"costs energy ({_text(-self.saved, self.saved_error, 1)} more)"
        is_slower = self.slower is not None and self.slower > max(self.slower_error, _LEAST_SLOWER)
        time = f", and training is {'' if is_slower else 'not '}slower ({self.slower_text})"
        return f"pfo-fs {energy}{'' if self.slower is None else time}. {_next_step(state, self.by)}"


def _next_step(state: JobState, by: str) -> str:
    if state.is_over:
        return "The job has ended."
    if state.progress and all(rank.held for rank in state.progress):
        return "It is switched off now: all ranks are at default clocks."
    if is_overruled(state):
        return "Others decide the clocks of its GPUs: look at `pfo-fs doctor` there."
    if by == "yaml":
        return "It stays so until schedule.yaml is changed."
    if by == "loads":
        return (state.loads and state.loads.problem) or "There is nothing to do."
    if state.current is not None and state.current.converged:
        return "The scheduler has settled: there is nothing to do."
    return "It is not settled: the scheduler tries plans; look again in some minutes."


def verdict_of(state: JobState) -> Verdict:
    """Returns what is known of the clocks in force; for a schedule by hand, or without a model, results are read."""
    source = state.current.source if state.current is not None and state.current.number >= 0 else None
    model, loads, allowed = state.compared, state.loads, allowed_slowdown(state.compared)
    if is_overruled(state):
        return Verdict()
    if source is not None and source.kind == "yaml":
        return replace(_by_hand(state), allowed=allowed, by="yaml")
    if loads is not None:
        return Verdict(
            loads.saved, 2 * (loads.saved_error or 0.0), loads.late, 2 * (loads.late_error or 0.0), by="loads"
        )
    if model is None:  # not of a policy that compares
        return replace(_by_hand(state), by="scheduler") if state.current and state.current.converged else Verdict()
    if source is not None and (source.plan_inputs.slow_pipelines or source.plan_inputs.straggler is not None):
        allowed = max(allowed, model.more_time or 0.0)  # the others keep the pace of a straggler: no plan changes it
    errors = model.energy_saved_error or 0.0, model.more_time_error or 0.0
    return Verdict(model.energy_saved, 2 * errors[0], model.more_time, 2 * errors[1], allowed, "scheduler")


def is_overruled(state: JobState) -> bool:
    """Whether others decide the clock of one of the job's GPUs: then what was measured and planned is not in force."""
    return state.end is None and any(rank.overruled for rank in state.progress)


def allowed_slowdown(model: bodies.ModelBody | None) -> float:
    """By how much longer than at default clocks the job's target lets iterations be, relative."""
    if model is None or model.more_time is None or model.off_target is None:
        return 0.0
    return max(0.0, (1 + model.more_time) / (1 + max(model.off_target, -0.99)) - 1)


def _by_hand(state: JobState) -> Verdict:
    """What was measured, from the first schedule and the newest ones: reading all of a large job takes seconds."""
    from pfo_fs.reports.savings import savings_of

    found = savings_of(state if isinstance(state, JobData) else collect_job(state.folder, newest=3), any_work=True)
    now, base, (time_error, energy_error) = found.measured, found.baseline, found.change_errors
    if now is None or base is None or time_error is None or energy_error is None:
        step = state.loads.last if state.loads is not None else None
        if step is None or not max(step.full_s):
            return Verdict()
        return Verdict(slower=max(step.work_s) / max(step.full_s) - 1, slower_error=_OF_LOADS)
    return Verdict(1 - now.energy_j / base.energy_j, energy_error, now.span_s / base.span_s - 1, time_error)


def cannot_keep(target: Target, model: bodies.ModelBody | None) -> str:
    """Returns why a job cannot keep to a target, by what it has measured; empty if it may, or if that is not known."""
    power_w, time_s = (model.lowest_power_w or 0.0, model.shortest_s or 0.0) if model is not None else (0.0, 0.0)
    if target.power is not None and target.power < power_w:
        return f"its GPUs draw about {power_w:,.0f} W together at their lowest clocks"
    is_late = target.deadline is not None and target.deadline < time_s * (1 - _LEAST_SLOWER)
    return f"an iteration takes {time_s:.4g} s at max clocks" if is_late else ""


def expected_slowdown(data: JobData, schedules: Sequence[FrequencySchedule]) -> float | None:
    """Returns by how much longer iterations would take under schedules than at the highest clocks, relative.

    It follows from what the job has measured, with times linear in 1 / clock. An instruction that was measured at one
    clock only is taken to follow it as others do. None if none has two clocks, or an order or time is unknown.

    Raises:
        PlanError: The profile in the job's folder, or the recorded orders, cannot be right.
    """
    from pfo_fs.planner import read_profile
    from pfo_fs.reports.timeline import dag_of, starts_of

    content = data.folder.read_file(layout.PROFILE)
    measured = read_profile(layout.PROFILE, content.decode(errors="replace")).measurements if content else {}
    ends = {kind: (points[0], points[-1]) for kind, points in measured.items()}
    follows = {
        kind: (low.time_s / high.time_s - 1) / (high.frequency_mhz / low.frequency_mhz - 1)
        for kind, (high, low) in ends.items()
        if low.frequency_mhz < high.frequency_mhz
    }
    if not follows:
        return None
    clocks_of = {schedule.rank: [mhz for _, mhz in schedule.frequencies] for schedule in schedules}

    def time_s(kind: tuple[int, str], mhz: int) -> float:
        high, share = ends[kind][0], follows.get(kind, fmean(follows.values()))
        return high.time_s * (1 + share * (high.frequency_mhz / (mhz or high.frequency_mhz) - 1))

    longest = 0.0
    for pipeline in range(min(data.job.job_info.dp_degree, _MOST_PIPELINES)):
        dag = dag_of(data, pipeline)
        kinds = [(node.stage, node.name.lower()) for node in dag.instructions] if dag is not None else []
        if dag is None or not ends.keys() >= set(kinds):
            return None
        ranks = data.pipeline_ranks(pipeline)
        clocks = [mhz for info in ranks for mhz in clocks_of.get(info.rank, [0] * len(data.orders[info.rank]))]
        spans = []
        for given in (clocks, [0] * len(clocks)):
            times_s = list(map(time_s, kinds, given))
            spans.append(max(begin + own for begin, own in zip(starts_of(dag, times_s), times_s, strict=True)))
        longest = max(longest, spans[0] / spans[1] - 1)
    return longest


def _text(share: float | None, error: float, digits: int) -> str:
    return "–" if share is None else share_text(share, error, digits).replace("-", "−")
