"""The rule by which plans are chosen, with a model that is told what to believe."""

import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, cast

import pytest

from pfo_fs.autotune.curves import EXPECTED, View
from pfo_fs.autotune.decision import (
    LEAST_GAIN,
    MOST_LATE_TRIAL,
    TOLERANCE,
    Choice,
    choose,
    in_time,
    is_late,
    trial_time,
)
from pfo_fs.autotune.job_layout import ClockPlan
from pfo_fs.autotune.judgements import Judgement
from pfo_fs.autotune.model import JobModel

SURELY = 0.0001


def plan_of(mhz: int) -> ClockPlan:
    return ClockPlan(((mhz,),))


def believed(saved: float, late: float = 0.0, late_error: float = SURELY) -> Judgement:
    return Judgement(late, late_error, late, saved, 0.002)


NO_TRIALS = 1.0
"""Iterations that trials have lost: more than they may in a job of 100 iterations."""
HIGHEST, PLAN, OTHER, HOPED = plan_of(1410), plan_of(1200), plan_of(1100), plan_of(900)


class FakeModel:
    """A model with one clock per plan.

    Args:
        judgements: What is believed of each plan, by its clock.
        planned: What the planner makes for a time, as a multiple of the target.
        hoped: What it makes of clocks that may be better than expected.
        hopes: What plans save if hopes are right, by their clocks.
        mixes, nearer: The clock of the plan with every so many hoped-for clocks, or a part of the way to them.
        slowdown: By how many times iterations may be longer than at max clocks.
    """

    def __init__(
        self,
        judgements: Mapping[int, Judgement],
        planned: Callable[[float], int] | int = 1410,
        hoped: int = 1410,
        hopes: Mapping[int, float] | None = None,
        mixes: Mapping[int, int] | None = None,
        nearer: Mapping[float, int] | None = None,
        slowdown: float = 1.0,
    ) -> None:
        self.full_s, self.target_s = 10.0, 10.0 * slowdown
        self.judgements = {1410: believed(0.0), **judgements}
        self._planned, self.hoped, self.hopes = planned, hoped, dict(hopes or {})
        self._mixes, self._nearer = mixes or {}, nearer or {}
        self.unknown: set[object] = set()
        self.max_clocks = HIGHEST
        self.one_stretch = self.only_steady = False
        self.trial_iterations = 4
        self.steady: int | None = None
        self.times: list[float] = []  # for which plans were made, as multiples of the target

    def plan(
        self, times: float = 1.0, view: View = EXPECTED, near: ClockPlan | None = None, steady: bool = False
    ) -> ClockPlan:
        self.times.append(times)
        if steady and self.steady is not None:
            return plan_of(self.steady)
        if view.times < EXPECTED.times:
            return plan_of(self.hoped)
        return plan_of(self._planned if isinstance(self._planned, int) else self._planned(times))

    def judge(self, plan: ClockPlan) -> Judgement:
        return self.judgements[plan.clocks_mhz[0][0]]

    def knows(self, plan: ClockPlan) -> bool:
        return plan not in self.unknown

    def mixed(self, plan: ClockPlan, other: ClockPlan, every: int, first: int = 0) -> ClockPlan:
        return plan_of(self._mixes.get(every, other.clocks_mhz[0][0]))

    def nearer(self, plan: ClockPlan, other: ClockPlan, share: float) -> ClockPlan:
        return plan_of(self._nearer.get(share, other.clocks_mhz[0][0]))

    def saved_if(self, plan: ClockPlan, view: View) -> float:
        return self.hopes.get(plan.clocks_mhz[0][0], 0.0)


def chosen(
    model: FakeModel,
    last: Choice | None = None,
    tried: tuple[ClockPlan, ...] = (),
    iterations: int = 100,
    lost: float = 0.0,
    is_regular: bool = False,
) -> Choice:
    return choose(cast("JobModel", cast("Any", model)), last, iterations, tried, lost, is_regular)


def in_force(plan: ClockPlan, stays: ClockPlan | None = None, trial: bool = False) -> Choice:
    return Choice(plan, believed(0.0), stays=stays or (None if trial else plan), trial=trial)


@pytest.mark.parametrize(("late", "plan"), [(0.0, PLAN), (0.02, HIGHEST)])
def test_the_first_plan_is_surely_in_time_or_else_all_clocks_are_the_highest(late: float, plan: ClockPlan) -> None:
    choice = chosen(FakeModel({1200: believed(0.1, late)}, planned=1200))
    assert choice.plan == plan
    assert not choice.converged, "it has not been measured yet"


def test_where_only_one_clock_per_rank_tells_something_such_plans_come_first() -> None:
    model = FakeModel({1200: believed(0.1), 1100: believed(0.2)}, planned=1100)
    model.one_stretch, model.steady = True, 1200
    first = chosen(model)
    assert first.plan == PLAN
    assert not first.converged
    assert chosen(model, first, (PLAN,)).plan == OTHER, "no other plan with one clock per rank is worth a window"


class PlannerOffTarget(FakeModel):
    """A model whose plans take longer by some share than the planner has been asked for; slower ones save more.

    Its planner makes no plan that is faster than max clocks.
    """

    def __init__(self, off: float, late_error: float, slowdown: float) -> None:
        super().__init__({}, slowdown=slowdown)
        self._off, self._late_error, self._times = off, late_error, {0: 1.0}

    def plan(self, times: float = 1.0, *_: Any, **__: Any) -> ClockPlan:
        if times * self.target_s <= self.full_s:
            return HIGHEST
        self._times[len(self._times)] = times
        return plan_of(len(self._times) - 1)

    def judge(self, plan: ClockPlan) -> Judgement:
        if plan == HIGHEST:
            return believed(0.0)
        times = self._times[plan.clocks_mhz[0][0]]
        return believed(0.1 + times - 1, times - 1 + self._off, self._late_error)


@pytest.mark.parametrize("lost", [0.0, NO_TRIALS])
@pytest.mark.parametrize("late_error", [0.0, 0.0005, 0.003])
@pytest.mark.parametrize("off", [-0.01, 0.0, 0.002, 0.01])
def test_a_target_that_leaves_room_has_a_plan_despite_its_planner(off: float, late_error: float, lost: float) -> None:
    choice = chosen(PlannerOffTarget(off, late_error, slowdown=1.1), lost=lost)
    assert in_time(choice.judgement) or (choice.trial and not lost)
    assert choice.judgement.late > (-0.004 if lost else -0.02), "hardly any time is left unused"
    assert choice.plan != HIGHEST


def test_a_target_that_leaves_no_room_after_one_that_did_has_a_plan_again() -> None:
    loose = replace(in_force(HIGHEST), margin=-0.002)
    choice = chosen(PlannerOffTarget(0.0, 0.0, slowdown=1.0), loose, (HIGHEST,), lost=NO_TRIALS)
    assert choice.plan != HIGHEST


@pytest.mark.parametrize(
    ("late", "late_error", "knows", "stays"),
    [(0.01, SURELY, True, False), (0.001, 0.002, True, True), (0.0, SURELY, False, False)],
    ids=["surely late", "perhaps late", "of another order of instructions"],
)
def test_a_plan_in_force_stays_until_surely_late(late: float, late_error: float, knows: bool, stays: bool) -> None:
    model = FakeModel({1200: believed(0.1, late, late_error), 1100: believed(0.05)}, planned=1100)
    model.unknown = set() if knows else {PLAN}
    assert chosen(model, in_force(PLAN), (PLAN,)).plan == (PLAN if stays else OTHER)


@pytest.mark.parametrize(("more", "changes"), [(LEAST_GAIN / 2, False), (2 * LEAST_GAIN, True)])
def test_a_plan_in_force_stays_unless_another_one_saves_surely_more(more: float, changes: bool) -> None:
    model = FakeModel({1200: believed(0.1), 1100: believed(0.1 + more)}, planned=1100)
    choice = chosen(model, in_force(PLAN), (PLAN,))
    assert choice.plan == (OTHER if changes else PLAN)
    assert choice.converged == (not changes)


def trying(judgement_of_hoped: Judgement, hopes: float = 0.2, **limited: Any) -> FakeModel:
    """The plan in force saves 10 %; clocks that are hardly known may save more."""
    judgements = {1200: believed(0.1), 900: judgement_of_hoped, 1150: believed(0.1, late=0.001)}
    return FakeModel(judgements, planned=1200, hoped=900, hopes={900: hopes, 1200: 0.1}, **limited)


@pytest.mark.parametrize(
    ("late", "late_error", "saved", "plan"),
    [(0.0, SURELY, 0.08, PLAN), (0.001, 0.02, 0.2, PLAN), (0.05, SURELY, 0.2, PLAN), (0.0, SURELY, 0.2, HOPED)],
)
def test_a_trial_stays_only_if_it_is_surely_in_time_and_saves_more(
    late: float, late_error: float, saved: float, plan: ClockPlan
) -> None:
    found = believed(saved, late, late_error)
    choice = chosen(trying(found), in_force(HOPED, stays=PLAN, trial=True), (PLAN, HOPED))
    assert choice.plan == choice.stays == plan
    assert choice.converged or plan == HOPED


@pytest.mark.parametrize(("late", "stays"), [(TOLERANCE / 2, True), (3 * TOLERANCE, False)])
def test_a_first_plan_stays_if_it_is_in_time_more_likely_than_not(late: float, stays: bool) -> None:
    model = FakeModel({1200: believed(0.1, late=late, late_error=5 * TOLERANCE)}, planned=1200)
    choice = chosen(model, replace(in_force(PLAN, trial=True), windows=2), (PLAN,))
    assert (choice.plan == PLAN) == stays


@pytest.mark.parametrize(
    "limited", [{"nearer": {1 / 4: 1150}}, {"mixes": {4: 1150}}], ids=["a small step", "few micro-batches"]
)
def test_a_trial_is_no_later_than_it_may_be(limited: dict[str, Any]) -> None:
    late = believed(0.2, late=2 * MOST_LATE_TRIAL, late_error=0.02)
    choice = chosen(trying(late, **limited), in_force(PLAN), (PLAN,))
    assert (choice.plan, choice.trial) == (plan_of(1150), True)


@pytest.mark.parametrize(
    ("found", "hopes", "tried"),
    [
        (believed(0.09), 0.1 + LEAST_GAIN / 2, (PLAN,)),
        (believed(0.09), 0.2, (PLAN, HOPED)),
        (believed(0.2, late=2 * MOST_LATE_TRIAL, late_error=0.02), 0.2, (PLAN,)),
        (believed(-0.9), 0.11, (PLAN,)),
    ],
    ids=["nothing to win", "tried before", "too late even for a small step", "the window costs more"],
)
def test_where_nothing_is_worth_another_window_the_plan_in_force_is_settled(
    found: Judgement, hopes: float, tried: tuple[ClockPlan, ...]
) -> None:
    choice = chosen(trying(found, hopes), in_force(PLAN), tried)
    assert (choice.plan, choice.converged, choice.trial) == (PLAN, True, False)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
def test_trials_of_few_micro_batches_and_of_a_part_of_the_way_take_turns(count: int) -> None:
    model = trying(believed(0.09, late=0.002, late_error=0.002), mixes={1: 1150}, nearer={1.0: 1160})
    model.judgements[1160] = believed(0.1, late=0.001)
    tried = (PLAN, *(plan_of(100 + number) for number in range(count - 1)))
    model.unknown = set(tried[1:])
    choice = chosen(model, in_force(PLAN), tried)
    assert (choice.plan, choice.trial) == (plan_of(1160 if count % 2 else 1150), True)


def test_a_long_job_tries_what_a_short_one_does_not() -> None:
    model = trying(believed(-0.1), hopes=0.11)
    assert chosen(model, in_force(PLAN), (PLAN,), iterations=10).converged
    assert chosen(model, in_force(PLAN), (PLAN,), iterations=100_000).trial


def test_a_plan_that_is_expected_to_save_more_is_tried_after_more_trials_in_vain_than_one_that_only_hopes() -> None:
    model = FakeModel({1200: believed(0.1), 1100: believed(0.15, late_error=0.003)}, planned=1100)
    last = replace(in_force(PLAN), in_vain=2)
    choice = chosen(model, last, (PLAN,))
    assert (choice.plan, choice.stays, choice.trial) == (OTHER, PLAN, True), "it is measured before it counts as late"
    assert not chosen(model, replace(last, in_vain=9), (PLAN,)).trial, "the job settles"
    model = trying(believed(0.09, late=0.002, late_error=0.002))
    assert not chosen(model, last, (PLAN,)).trial, "it only hopes"


@pytest.mark.parametrize("seed", range(20))
def test_a_job_whose_beliefs_do_not_change_settles_after_a_few_windows(seed: int) -> None:
    rng = random.Random(seed)
    judgements = {
        mhz: believed(rng.uniform(0, 0.2), rng.gauss(0, 0.002), rng.choice([SURELY, 0.001]))
        for mhz in (1200, 1100, 900)
    }
    model = FakeModel(judgements, rng.choice([1200, 1100]), 900, {900: rng.uniform(0, 0.3)})
    choice, tried = chosen(model), []
    for _ in range(8):
        tried.append(choice.plan)
        choice = chosen(model, choice, tuple(tried))
    assert choice.converged
    assert not is_late(choice.judgement)


def settle(model: FakeModel, last: Choice, tried: tuple[ClockPlan, ...]) -> tuple[Choice, tuple[ClockPlan, ...], int]:
    """Trials that win nothing follow each other until the plan in force stays; returns their number, too."""
    trials = 0
    while not last.converged:
        trials += 1
        model.hoped -= 1  # another plan each time, which is late as soon as it is measured
        model.judgements[model.hoped] = believed(0.09, late=0.002)
        model.hopes[model.hoped] = 0.2
        tried = (*tried, last.plan)
        last = chosen(model, last, tried)
    return last, tried, trials


def test_trials_that_win_nothing_end_and_one_more_follows_each_regular_measurement() -> None:
    model = trying(believed(0.09, late=0.002, late_error=0.002))
    first = chosen(model, in_force(PLAN), (PLAN,))
    assert first.trial
    converged, tried, trials = settle(model, first, (PLAN,))
    assert converged.plan == PLAN
    assert trials < 5
    again = chosen(model, converged, tried, 300, is_regular=True)
    assert again.trial
    converged, tried, trials = settle(model, again, tried)
    assert trials == 1


def test_a_trial_that_is_neither_surely_in_time_nor_surely_late_goes_on_for_three_windows() -> None:
    model = trying(believed(0.2, late=0.0, late_error=0.002))
    choice, windows = in_force(HOPED, stays=PLAN, trial=True), 1
    while (choice := chosen(model, choice, (PLAN, HOPED))).trial:
        assert choice.plan == HOPED
        windows += 1
    assert windows == 3, "as docs/how-it-works.md says"
    assert choice.plan == PLAN


@pytest.mark.parametrize(
    ("judgement", "plan"),
    [(believed(0.2, late=0.75 * TOLERANCE - SURELY), PLAN), (believed(0.0, late=0.01), HIGHEST)],
    ids=["uses up most of the tolerance", "late and saves nothing"],
)
def test_no_plan_is_made_again_for_another_time_where_that_wins_nothing(judgement: Judgement, plan: ClockPlan) -> None:
    model = FakeModel({1200: judgement}, planned=1200)
    assert chosen(model).plan == plan
    assert len(set(model.times)) == 1


@pytest.mark.parametrize("late", [-0.001, 0.0, 0.5 * TOLERANCE, 2 * TOLERANCE])
def test_plans_are_made_for_times_near_the_target(late: float) -> None:
    model = FakeModel({1200: believed(0.2, late=late)}, planned=1200)
    chosen(model)
    assert all(abs(times - 1) < 0.005 for times in model.times)


@pytest.mark.parametrize(("late", "error"), [(0.0, 0.01), (-0.005, 0.004), (0.01, 0.002), (-0.02, 0.001), (0.003, 0.0)])
def test_a_trial_is_expected_to_take_the_mean_of_what_it_may_be_late_by(late: float, error: float) -> None:
    drawn = random.Random(0)
    mean = sum(max(0.0, drawn.gauss(late, error)) for _ in range(20_000)) / 20_000
    assert trial_time(believed(0.1, late, error), 8) == pytest.approx(mean * 8, rel=0.05, abs=1e-6)
