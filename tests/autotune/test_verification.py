"""Which plan follows after one was measured, in a job of which only the times of its plans differ from the model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from scheduler_jobs import make_job, one_f_one_b, order_of

from pfo_fs.autotune.believed_trials import BelievedTrials
from pfo_fs.autotune.corrections import MOST_CORRECTIONS
from pfo_fs.autotune.job_layout import JobLayout
from pfo_fs.autotune.job_model import JobModel, pipeline_of
from pfo_fs.autotune.measured_switching import ClockOffer
from pfo_fs.autotune.plan_choice import PlanChoice
from pfo_fs.autotune.plan_goal import PlanGoal
from pfo_fs.autotune.plan_selection import PlanSelection
from pfo_fs.autotune.trials import Trial
from pfo_fs.autotune.verification import PlanVerification, Verdict
from pfo_fs.autotune.window_results import FullSpeed
from pfo_fs.models import ProfilingResult, Target, UsualTime
from pfo_fs.planner import Measurement, Plan, Profile, SwitchCosts

NOISE, STEPS = 0.0005, 5
LENGTHS = (1.0, 1.1, 1.2, 1.4)
STAGES = len(LENGTHS)
STANDS_STILL = SwitchCosts(stands_still_s=0.0005)


class Job:
    """Four stages of different lengths; `late` says by how much a plan's iterations are longer than by the model.

    With `searches`, GPUs stand still at clock changes, so that searches of some seconds find better plans. Otherwise
    the instruction after a change is longer.
    """

    def __init__(
        self,
        late: Callable[[Plan], float],
        saves: Callable[[Plan], float] = lambda plan: 1.0,
        slowdown: float = 1.0,
        offers: Sequence[ClockOffer] = (ClockOffer(),),
        costs: SwitchCosts = STANDS_STILL,
        searches: bool = False,
    ) -> None:
        self._late, self._saves, self.noise = late, saves, NOISE
        job, infos = make_job(STAGES, 1)
        orders = {info.rank: order_of(one_f_one_b(info.pp_rank, STAGES, 6)) for info in infos}
        layout = JobLayout(job, infos, lambda: orders)
        clocks = range(900, 1411, 30)
        table = {
            (stage, name): [
                Measurement(
                    mhz, LENGTHS[stage] * 0.1 * (1410 / mhz) ** 0.7, LENGTHS[stage] * (10 + 30 * (mhz / 1410) ** 2)
                )
                for mhz in clocks
            ]
            for stage in range(STAGES)
            for name in ("forward", "backward")
        }
        pipeline = pipeline_of([layout.order(rank) for rank in layout.one_pipeline()])
        self.selection = PlanSelection(layout, PlanGoal(Target(slowdown=slowdown), {}))
        self.verification = PlanVerification(layout, self.selection, self._rebuild)

        def model() -> JobModel:
            change_s = costs.stands_still_s or self.selection.corrections.change_s
            switch_costs = replace(costs, stands_still_s=change_s)
            profile = Profile(table)
            return JobModel(pipeline, profile, 20.0, 1, [], switch_costs, offers, changes_act_late=not searches)

        self._model = model
        full = self._model().full_speed
        self.selection.full_speed = FullSpeed(full.iteration_time_s, full.energy_j, 0.0)
        self._full_j = full.energy_j
        self._rebuild()

    def _rebuild(self) -> None:
        self.selection.use_model(self._model())
        if self.selection.kept is None:
            self.verification.aim()

    @property
    def plan(self) -> Plan:
        return self.selection.plan_of(0)

    def window(self) -> Verdict:
        """Measures the plan in force."""
        verdict = self.verification.verify(self._results(self.plan), self.noise, 1.0)
        assert verdict is not None
        return verdict

    def window_before_profiling(self) -> None:
        """Measures the plan in force, while profiling goes on."""
        self.verification.count_early(self._results(self.plan), self.noise, 1.0)

    def reference(self) -> Verdict:
        """Measures the highest clocks before the next plan is chosen."""
        assert self.verification.wants_reference
        return self.verification.use_reference(self._results(self.selection.model.full_speed))

    def _results(self, plan: Plan) -> list[ProfilingResult]:
        span_s = plan.iteration_time_s * (1 + self._late(plan))
        energy_j = self._full_j - self._saves(plan) * (self._full_j - plan.energy_j)
        return [
            ProfilingResult(
                rank=rank,
                iter_time=[span_s] * STEPS,
                iter_span=[span_s] * STEPS,
                iter_energy=[energy_j / STAGES] * STEPS,
            )
            for rank in range(STAGES)
        ]

    def settle(self) -> list[Plan]:
        """Measures until a plan stays; returns the plans that were in force."""
        plans = [self.plan]
        for _ in range(20):
            verdict = self.window()
            while self.verification.wants_reference:
                verdict = self.reference()
            if verdict.converged:
                return plans
            plans.append(self.plan)
        raise AssertionError("no plan stays")


def test_a_plan_that_does_what_it_promised_stays_at_once() -> None:
    job = Job(lambda plan: job.selection.predicted_off(plan))
    assert len(job.settle()) == 1


def test_where_gpus_stand_still_at_changes_the_plan_of_a_longer_search_follows() -> None:
    job = Job(lambda plan: 0.0, costs=SwitchCosts(stands_still_s=0.005), searches=True)
    first, second = job.settle()
    assert second.energy_j < 0.98 * first.energy_j
    assert second.iteration_time_s <= 1.001 * job.selection.model.full_speed.iteration_time_s


def test_the_plan_of_a_longer_search_does_not_stay_if_it_is_late() -> None:
    costs = SwitchCosts(stands_still_s=0.005)
    first_j = Job(lambda plan: 0.0, costs=costs).plan.energy_j
    job = Job(lambda plan: 0.01 if plan.energy_j < 0.98 * first_j else 0.0, costs=costs, searches=True)
    first, *searched, last = job.settle()
    assert len(searched) == 2, "no other plans are tried then"
    assert all(plan.energy_j < 0.98 * first_j for plan in searched)
    assert last.frequencies_mhz == first.frequencies_mhz


def test_a_plan_of_a_longer_search_that_is_a_little_late_is_followed_by_a_faster_one() -> None:
    costs = SwitchCosts(stands_still_s=0.005)
    first_j = Job(lambda plan: 0.0, costs=costs).plan.energy_j
    searched: list[Plan] = []

    def late(plan: Plan) -> float:
        if plan.energy_j < 0.98 * first_j and (not searched or plan.frequencies_mhz == searched[0].frequencies_mhz):
            searched.append(plan)
            return 0.003
        return 0.0

    job = Job(late, costs=costs, searches=True)
    last = job.settle()[-1]
    assert searched[0].energy_j < last.energy_j < 0.98 * first_j
    assert last.iteration_time_s < searched[0].iteration_time_s


def test_a_search_leaves_as_much_more_room_as_the_plan_of_the_last_one_was_late() -> None:
    selection = Job(lambda plan: 0.0, slowdown=1.1, searches=True).selection
    full_s = selection.full_speed.span_s
    assert selection.searched(0.0).iteration_time_s == pytest.approx(1.1 * full_s, rel=0.003)
    assert selection.searched(0.02).iteration_time_s <= 0.98 * 1.101 * full_s


def test_a_plan_that_is_late_is_followed_by_one_with_as_much_room_as_is_missing() -> None:
    first_j = Job(lambda plan: 0.0).plan.energy_j
    job = Job(lambda plan: 0.004 if plan.energy_j < 1.001 * first_j else 0.0)
    plans = job.settle()
    assert len(plans) <= 4
    assert 1.001 * first_j <= plans[-1].energy_j < 0.99 * job._full_j


def test_of_plans_that_are_on_time_the_one_that_was_measured_to_save_most_stays() -> None:
    first = Job(lambda plan: 0.0).plan.frequencies_mhz
    job = Job(lambda plan: 0.0, lambda plan: 0.1 if plan.frequencies_mhz == first else 0.6)
    plans = job.settle()
    assert plans[0].frequencies_mhz == first
    assert len(plans) > 1, "it disappoints, so one with fewer changes is tried"
    assert job.plan.frequencies_mhz != first


def test_a_plan_that_was_measured_while_profiling_went_on_comes_back_if_those_after_it_are_late() -> None:
    first = Job(lambda plan: 0.0).plan.frequencies_mhz
    job = Job(lambda plan: 0.0 if plan.frequencies_mhz == first else 0.05)
    job.window_before_profiling()
    job.selection.kept = job.selection.model.within(1.02 * job.selection.model.full_speed.iteration_time_s)
    assert job.plan.frequencies_mhz != first
    job.settle()
    assert job.plan.frequencies_mhz == first


def test_how_late_a_plan_was_while_profiling_went_on_gives_those_after_it_no_room_until_it_is_measured_again() -> None:
    job = Job(lambda plan: 0.01)
    before = job.selection.corrections.time_margin
    job.window_before_profiling()
    job.verification.aim()
    assert job.selection.corrections.time_margin == before
    job.window()
    job.selection.corrections.time_margin = 0.0
    job.verification.aim()
    assert job.selection.corrections.time_margin > 0.003


@pytest.mark.parametrize(
    ("off", "others", "stays"),
    [(0.0014, 0.8, True), (0.0017, 0.8, False), (0.0017, 0.1, True), (0.0021, 0.1, False)],
)
def test_a_plan_that_hardly_misses_its_target_stays_if_the_others_save_much_less(
    off: float, others: float, stays: bool
) -> None:
    first = Job(lambda plan: 0.0).plan.frequencies_mhz
    job = Job(
        lambda plan: off if plan.frequencies_mhz == first else 0.0,
        lambda plan: 1.0 if plan.frequencies_mhz == first else others,
    )
    job.settle()
    assert (job.plan.frequencies_mhz == first) == stays


def test_if_every_plan_is_late_all_run_at_the_highest_clocks_and_the_note_says_why() -> None:
    job = Job(lambda plan: 0.05)
    for _ in range(20):
        verdict = job.window()
        if job.selection.corrections.full_speed_only:
            break
    assert job.plan.frequencies_mhz == job.selection.model.full_speed.frequencies_mhz
    assert "does not deliver" in verdict.note


def test_at_the_highest_clocks_nothing_counts_as_saved_whatever_the_energy_counters_say() -> None:
    job = Job(lambda plan: 0.0)
    job.selection.kept = job.selection.model.full_speed
    job.selection.full_speed = replace(job.selection.full_speed, energy_j=1.02 * job._full_j)
    found = job.window().compared
    assert found is not None
    assert found.energy_saved == 0.0


def test_iterations_that_are_shorter_than_the_target_are_used_to_save_more() -> None:
    job = Job(lambda plan: -0.02)
    first = job.plan
    job.settle()
    assert job.plan.energy_j < 0.995 * first.energy_j
    assert job.plan.iteration_time_s * 0.98 < 1.001 * job.selection.full_speed.span_s


def test_a_plan_of_which_nothing_was_measured_is_measured_again_a_few_times() -> None:
    job = Job(lambda plan: 0.0)
    verdicts = [job.verification.verify([], NOISE, 1.0) for _ in range(5)]
    assert [verdict is not None and not verdict.converged for verdict in verdicts] == [True] * 3 + [False] * 2
    job.window()
    assert job.verification.verify([], NOISE, 1.0) is not None


def test_another_target_begins_anew() -> None:
    job = Job(lambda plan: 0.05)
    while not job.selection.corrections.full_speed_only:
        job.window()
    job.verification.forget()
    assert job.selection.kept is None
    assert not job.selection.corrections.full_speed_only
    assert job.plan.energy_j < job._full_j


@pytest.mark.parametrize("off", [0.0, 0.0005])
def test_a_plan_that_stays_is_still_the_plan_after_the_next_window(off: float) -> None:
    job = Job(lambda plan: off)
    job.settle()
    plan = job.plan
    assert job.window().converged
    assert job.plan.frequencies_mhz == plan.frequencies_mhz


def test_a_plan_that_small_margins_do_not_change_gets_larger_ones_before_all_run_at_the_highest_clocks() -> None:
    job = Job(lambda plan: 0.0025 if plan.frequencies_mhz == first else 0.0)
    first = job.plan.frequencies_mhz
    usual = job.selection.planned_for

    def coarse(pipeline: int) -> Plan:
        """Clocks are so far apart that only a margin above 8 % gives another plan."""
        margin = job.selection.corrections.time_margin
        if margin > 0.08:
            return usual(pipeline)
        job.selection.corrections.time_margin = 0.0
        plan = usual(pipeline)
        job.selection.corrections.time_margin = margin
        return plan

    job.selection.planned_for = coarse  # type: ignore[method-assign]
    job.settle()
    assert not job.selection.corrections.full_speed_only
    assert job.plan.energy_j < job._full_j


def _changes_clocks(plan: Plan) -> bool:
    return any(len({mhz for _, mhz in schedule.frequencies}) > 1 for schedule in plan.schedules())


def test_if_plans_with_clock_changes_are_late_each_stage_gets_one_clock() -> None:
    job = Job(lambda plan: 0.05 if _changes_clocks(plan) else 0.0, slowdown=1.04)
    job.settle()
    assert not _changes_clocks(job.plan)
    assert not job.selection.runs_at_full_speed


def test_a_plan_that_saves_less_than_one_clock_per_stage_promises_does_not_stay() -> None:
    job = Job(lambda plan: 0.0, lambda plan: 0.05 if _changes_clocks(plan) else 1.0, slowdown=1.04)
    job.settle()
    assert not _changes_clocks(job.plan)
    assert not job.selection.runs_at_full_speed


@pytest.mark.parametrize("learns", [True, False])
def test_a_plan_that_was_late_while_its_clocks_were_new_gets_another_window(learns: bool) -> None:
    windows: Counter[tuple[int, ...]] = Counter()

    def late(plan: Plan) -> float:
        windows[tuple(plan.frequencies_mhz)] += 1
        return 0.0 if learns and windows[tuple(plan.frequencies_mhz)] > 1 else 0.05

    job = Job(late, slowdown=1.02, offers=(ClockOffer(frozenset({900})), ClockOffer(latency_s=0.02)))
    for _ in range(40):
        if job.window().converged or job.selection.corrections.full_speed_only:
            break
    assert job.selection.corrections.full_speed_only != learns
    assert learns == (job.plan.energy_j < 0.99 * job._full_j)


def test_a_plan_that_was_late_while_its_clocks_were_new_gets_another_window_if_those_on_time_save_much_less() -> None:
    windows: Counter[tuple[int, ...]] = Counter()
    first = Job(lambda plan: 0.0, slowdown=1.02).plan.frequencies_mhz

    def late(plan: Plan) -> float:
        windows[tuple(plan.frequencies_mhz)] += 1
        return 0.05 if plan.frequencies_mhz == first and windows[tuple(first)] == 1 else 0.0

    offers = (ClockOffer(frozenset({900})), ClockOffer(latency_s=0.02))
    job = Job(late, lambda plan: 1.0 if plan.frequencies_mhz == first else 0.2, slowdown=1.02, offers=offers)
    job.settle()
    assert job.plan.frequencies_mhz == first


def test_if_all_plans_with_clock_changes_are_late_changes_get_the_time_that_explains_it() -> None:
    def late(plan: Plan) -> float:
        return job.selection.predicted_off(plan, 0.002)

    job = Job(late, costs=SwitchCosts(late_s=0.0005))
    assert late(job.plan) > 0.002
    job.settle()
    assert 0.001 <= job.selection.corrections.change_s <= 0.005
    assert late(job.plan) < 0.0015
    assert job.plan.energy_j < job._full_j


def test_a_window_at_the_highest_clocks_counts_for_the_time_that_plans_are_compared_with() -> None:
    job = Job(lambda plan: 0.001)
    job.noise = 0.002
    before, full_speed = job.selection.full_speed, job.selection.model.full_speed
    off = job.selection.predicted_off(full_speed)
    job.window()
    job.selection.kept = full_speed
    job.window()
    found = job.selection.full_speed
    assert found.windows == before.windows + 1
    assert found.span_s == pytest.approx(before.span_s * 1.0005)
    assert job.selection.predicted_off(full_speed) == pytest.approx(off, abs=1e-6), "the model is fitted to it"
    assert job.verification._trials.all[0].off == pytest.approx(0.0005, abs=2e-4), (
        "earlier plans are compared with it too"
    )


def test_a_window_at_the_highest_clocks_that_differs_by_more_than_noise_does_not_count() -> None:
    job = Job(lambda plan: 0.05)
    before = job.selection.full_speed
    job.selection.kept = job.selection.model.full_speed
    job.window()
    assert job.selection.full_speed == before


@pytest.mark.parametrize(
    ("off", "saved", "windows", "doubts"),
    [
        (0.002, 0.05, 1, True),
        (0.002, 0.03, 1, False),  # hardly better than the best plan that is in time
        (0.0005, 0.05, 1, False),  # in time
        (0.02, 0.05, 1, False),  # surely late
        (0.002, 0.05, 4, False),  # measured often enough
    ],
)
def test_a_plan_is_measured_again_if_it_may_be_late_by_chance_and_saves_much(
    off: float, saved: float, windows: int, doubts: bool
) -> None:
    job = Job(lambda plan: 0.0)
    trials = BelievedTrials(job.selection)
    trials.noise, trials.window_iterations = 0.002, 5
    trial = Trial(job.plan, off=off, saved=saved, windows=windows)
    found = trials.perhaps_in_time([trial], 0.025, {id(trial): saved}, {id(trial): off})
    assert (found is trial) == doubts


@pytest.mark.parametrize(
    ("saved", "again", "doubts"),
    [(0.1, 1, True), (0.1, 2, False), (0.2, 2, True), (0.2, 3, True), (0.2, 4, False)],
)
def test_more_windows_are_spent_on_that_question_if_the_plan_saves_far_more(
    saved: float, again: int, doubts: bool
) -> None:
    job = Job(lambda plan: 0.0)
    trials = BelievedTrials(job.selection)
    trials.noise, trials.window_iterations, trials.measured_again = 0.002, 5, again
    trial = Trial(job.plan, off=0.002, saved=saved, windows=1)
    assert (trials.perhaps_in_time([trial], 0.05, {id(trial): saved}, {id(trial): 0.002}) is trial) == doubts


def test_a_plan_that_was_late_by_chance_is_the_plan_after_another_window() -> None:
    windows: Counter[tuple[int, ...]] = Counter()

    def late(plan: Plan) -> float:
        windows[tuple(plan.frequencies_mhz)] += 1
        return 0.0055 if windows[first] == 1 and tuple(plan.frequencies_mhz) == first else 0.0

    job = Job(late, lambda plan: 1.0 if tuple(plan.frequencies_mhz) == first else 0.5)
    job.noise = 0.005
    first = tuple(job.plan.frequencies_mhz)
    job.settle()
    assert windows[first] > 1
    assert tuple(job.plan.frequencies_mhz) == first


def test_a_plan_in_force_that_may_be_late_by_chance_does_not_stay_without_another_window() -> None:
    job = Job(lambda plan: 0.0 if plan is slower else 0.004, lambda plan: 0.2 if plan is slower else 1.0)
    job.noise = 0.005
    late, slower = job.plan, job.selection.model.full_speed
    job.selection.kept = slower
    job.window()
    job.selection.kept, job.selection.corrections.count = late, MOST_CORRECTIONS
    verdict = job.window()
    assert not verdict.converged
    assert job.verification.wants_reference
    job.reference()
    assert not job.verification.wants_reference
    assert job.plan.frequencies_mhz == late.frequencies_mhz, "it comes back, and so is measured"


def test_before_a_plan_counts_as_late_the_highest_clocks_are_measured_again_if_their_time_is_not_known_well() -> None:
    job = Job(lambda plan: 0.003)  # all iterations, those at the highest clocks too
    job.noise = 0.002
    first = job.plan
    verdict = job.window()
    assert not verdict.converged
    assert "the highest clocks are measured again" in verdict.note
    assert (job.plan, job.selection.corrections.count) == (first, 0)
    job.reference()
    assert job.selection.full_speed.windows == 2
    assert [trial.plan for trial in job.verification._trials.all] == [first], "this window is no trial"
    assert job.verification._trials.all[0].off == pytest.approx(0.0015, abs=1e-4)


def test_the_highest_clocks_are_measured_again_at_most_twice_while_plans_are_tried() -> None:
    job = Job(lambda plan: 0.0 if plan is job.selection.model.full_speed else 0.01)
    job.noise = 0.002
    references = 0
    for _ in range(20):
        job.window()
        while job.verification.wants_reference:
            references += 1
            job.reference()
        if job.selection.corrections.full_speed_only:
            break
    assert references == 2


def test_the_highest_clocks_are_not_measured_again_because_of_a_plan_that_tries_clocks() -> None:
    job = Job(lambda plan: 0.0)
    trials = BelievedTrials(job.selection)
    trials.noise = 0.002
    assert trials.needs_reference(Trial(job.plan, off=0.01))
    assert not trials.needs_reference(Trial(job.plan, off=0.01, exploring=True))


@pytest.mark.parametrize("off", [0.0, 0.01])
@pytest.mark.parametrize(("noise", "again"), [(0.004, True), (0.0005, False)])
def test_the_highest_clocks_are_measured_again_if_their_time_is_not_known_well(
    noise: float, again: bool, off: float
) -> None:
    job = Job(lambda plan: 0.0)
    trials = BelievedTrials(job.selection)
    trials.noise, trials.window_iterations = noise, 5
    assert trials.needs_reference(Trial(job.plan, off=off)) == again


def test_the_highest_clocks_are_not_measured_again_for_a_deadline() -> None:
    job = Job(lambda plan: 0.0)
    trials = BelievedTrials(job.selection)
    trials.noise = 0.002
    job.selection.goal = PlanGoal(Target(deadline=1.1 * job.selection.full_speed.span_s), {})
    assert not trials.needs_reference(Trial(job.plan))


@pytest.mark.parametrize(("late", "most"), [(0.0, 4), (0.02, 2)])
def test_fewer_plans_try_clocks_where_such_plans_are_very_late(
    late: float, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[Plan] = []
    job = Job(lambda plan: late if plan in tried else 0.0)

    def to_try() -> tuple[Plan, float]:
        full_speed = job.selection.model.full_speed
        clocks = [1380 - 30 * len(tried), *full_speed.frequencies_mhz[1:]]
        tried.append(full_speed.replace(frequencies_mhz=tuple(clocks)))
        return tried[-1], 0.5 * full_speed.energy_j

    monkeypatch.setattr(job.selection, "to_try", to_try)
    job.settle()
    assert len(tried) == most


def test_a_window_at_the_highest_clocks_chooses_no_plan_once_there_is_another_target() -> None:
    job = Job(lambda plan: 0.003)
    job.noise = 0.002
    job.window()
    job.selection.goal = PlanGoal(Target(slowdown=1.1), {})
    assert not job.reference().converged
    assert not job.verification.wants_reference
    assert job.selection.full_speed.windows == 1


def test_where_iterations_hardly_scatter_the_highest_clocks_are_not_measured_again() -> None:
    job = Job(lambda plan: 0.003)
    job.noise = 0.0005
    assert "the highest clocks" not in job.window().note


def usual(job: Job, off: float, iterations: int = 128, error: float = 0.0002) -> UsualTime:
    """What so many iterations take that are off the target."""
    return UsualTime(time_s=job.selection.target_s() * (1 + off), error=error, iterations=iterations)


def settled() -> Job:
    job = Job(lambda plan: job.selection.predicted_off(plan))
    job.settle()
    return job


@pytest.mark.parametrize(("off", "error", "late"), [(0.004, 0.0002, True), (0.004, 0.004, False), (0.0008, 0, False)])
def test_a_plan_that_stays_turns_out_to_be_late_if_many_iterations_show_it(
    off: float, error: float, late: bool
) -> None:
    job = settled()
    assert job.verification.is_late(usual(job, off, error=error)) == late


@pytest.mark.parametrize(("off", "late"), [(0.0015, False), (0.003, True)])
def test_a_plan_that_stays_though_it_is_a_little_late_is_late_only_if_it_is_later_than_that(
    off: float, late: bool
) -> None:
    job = settled()
    trials = BelievedTrials(job.selection)
    trials.noise, trials.window_iterations = 0.0001, STEPS
    trials.all = [Trial(job.plan, off=0.0015, windows=3)]
    assert trials.is_late(job.plan, usual(job, off, error=0.0001)) == late


def test_where_another_stage_ends_last_each_plan_counts_with_its_own_time_between() -> None:
    """Iteration times are those of the first stage, as in zero-bubble schedules."""
    job = settled()
    trials, highest = BelievedTrials(job.selection), job.selection.model.full_speed
    trials.noise, trials.window_iterations = job.noise, STEPS
    trials.all = [Trial(highest, windows=1, whole=1.0), Trial(job.plan, windows=1, whole=1.01)]
    assert not trials.is_late(job.plan, usual(job, -0.01))
    assert trials.is_late(job.plan, usual(job, -0.006))


def test_a_plan_that_turns_out_to_be_late_is_followed_by_a_faster_one() -> None:
    job = settled()
    first = job.plan
    job._late = lambda plan: 0.004 if plan.frequencies_mhz == first.frequencies_mhz else 0.0
    job.verification.found_late(usual(job, 0.004))
    job.settle()
    assert job.plan.frequencies_mhz != first.frequencies_mhz
    assert first.energy_j < job.plan.energy_j < job._full_j


def test_two_plans_of_a_target_turn_out_to_be_late_at_most() -> None:
    job = settled()
    for off in (0.05, 0.1):
        assert job.verification.is_late(usual(job, off))
        job.verification.found_late(usual(job, off))
    assert not job.verification.is_late(usual(job, 0.2))


def test_the_highest_clocks_are_never_late() -> None:
    job = Job(lambda plan: 0.0)
    job.selection.kept = job.selection.model.full_speed
    job.window()
    assert job.verification._trials.of(job.selection.model.full_speed) is not None
    job.selection.kept = job.selection.model.full_speed
    assert not job.verification.is_late(usual(job, 0.05))


@pytest.mark.parametrize(("more", "stays"), [(0.001, True), (0.004, False)])
def test_a_plan_stays_in_force_unless_another_saves_clearly_more(more: float, stays: bool) -> None:
    job = Job(lambda plan: 0.0)
    trials = BelievedTrials(job.selection)
    trials.latest, other = Trial(job.plan), Trial(job.selection.model.full_speed)
    saved = {id(trials.latest): 0.1, id(other): 0.1 + more}
    assert (trials.best_of([other, trials.latest], saved) is trials.latest) == stays
    assert trials.best_of([], saved) is None


def windows_that_explore(monkeypatch: pytest.MonkeyPatch, measured_off: float, other_off: float) -> int:
    """How often clocks are tried after one plan, which was measured again and again after another one had been."""
    job = Job(lambda plan: 0.0)
    to_try = job.selection.model.full_speed
    monkeypatch.setattr(job.selection, "to_try", lambda: (to_try, 0.0))
    trials = BelievedTrials(job.selection)
    measured, other = Trial(job.plan), Trial(job.plan.replace(frequencies_mhz=(900,) * len(job.plan.frequencies_mhz)))
    trials.all, trials.references_left = [measured, other], 0
    for trial, off in ((measured, measured_off), (other, other_off)):
        trial.add(off, 0.1)
    choice = PlanChoice(job.selection, trials, lambda: None)
    return sum("trying clocks" in choice.next_after(measured, in_force=True) for _ in range(MOST_CORRECTIONS))


def test_clocks_are_tried_less_often_after_a_plan_that_was_very_late_and_not_after_one_that_another_plan_was_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    on_time = windows_that_explore(monkeypatch, 0.0, 0.0)
    assert windows_that_explore(monkeypatch, 0.0, 0.02) == on_time
    assert windows_that_explore(monkeypatch, 0.02, 0.0) < on_time
