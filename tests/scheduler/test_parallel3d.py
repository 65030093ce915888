"""A policy for stages on a job with data and tensor parallelism."""

import inspect
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scheduler_jobs import make_job, result_of

from pfo_fs.errors import PlanError
from pfo_fs.models import FrequencySchedule, InstructionPower, PlanInputs, ProfilingResult, Straggler, Target
from pfo_fs.scheduler import FrequencyScheduler, IterationTime, ScheduleGenerator, ScheduleRequest, make_3d_parallel
from pfo_fs.settings import PFOSettings


class PerStage(FrequencyScheduler):
    """A clock per stage, faster after each result; remembers what it was told."""

    def __init__(self, job_info: Any, rank_infos: Any, pfo_settings: Any, step: int = 15) -> None:
        super().__init__(job_info, rank_infos, pfo_settings)
        self.step = step
        self.heard: list[list[ProfilingResult]] = []

    def _run(self) -> ScheduleGenerator:
        mhz = 900
        while True:
            schedules = [
                FrequencySchedule(rank=info.rank, frequencies=[("forward", mhz + 100 * info.rank)])
                for info in self.rank_infos
            ]
            self.heard.append((yield list(reversed(schedules))))
            mhz += self.step


def make(pp: int = 2, dp: int = 2, tp: int = 2, cls: type[FrequencyScheduler] = PerStage, **args: Any) -> Any:
    job, infos = make_job(pp, dp, tp)
    return make_3d_parallel(cls)(job, list(reversed(infos)), PFOSettings(), **args)


def heard(results: list[ProfilingResult], **degrees: int) -> list[ProfilingResult]:
    """What the wrapped policy gets of these results."""
    scheduler = make(**degrees)
    scheduler.request()
    scheduler.observe(results)
    found: list[ProfilingResult] = scheduler.inner.heard[0]
    return found


def test_the_wrapped_class_sees_pure_pipeline_parallelism_and_one_rank_per_stage() -> None:
    job, infos = make_job(3, 2, 2)
    inner: Any = make_3d_parallel(PerStage)(job, infos, PFOSettings()).inner
    seen = inner.job_info
    assert (seen.pp_degree, seen.dp_degree, seen.tp_degree, seen.world_size, inner.world_size) == (3, 1, 1, 3, 3)
    ranks = [(info.rank, info.pp_rank, info.dp_rank, info.tp_rank) for info in inner.rank_infos]
    assert ranks == [(0, 0, 0, 0), (1, 1, 0, 0), (2, 2, 0, 0)]
    assert (job.world_size, job.dp_degree, len(infos), infos[7].rank) == (12, 2, 12, 7), "what was given stays"


@pytest.mark.parametrize("first", [[1400, 1200, 1000], []])
def test_a_stage_offers_the_clocks_that_all_its_ranks_offer_that_can_set_clocks(first: list[int]) -> None:
    job, infos = make_job(pp=1, dp=2)
    infos[0].available_frequencies = first
    infos[1].available_frequencies = [1300, 1200, 1000] if first else [1200, 1000]
    scheduler: Any = make_3d_parallel(PerStage)(job, infos, PFOSettings())
    assert scheduler.inner.rank_infos[0].available_frequencies == [1200, 1000]


@pytest.mark.parametrize(
    ("pp", "offers", "words"),
    [
        (1, [[1200], [1305]], r"stage 0 \(ranks 0, 1\) offer no clock in common"),
        (2, [[1200], [1200]], "no rank has pp_rank 1, but pp_degree is 2"),
    ],
)
def test_a_stage_without_ranks_or_a_common_clock_is_named(pp: int, offers: list[list[int]], words: str) -> None:
    job, infos = make_job(pp=pp, dp=2)
    for info, offer in zip(infos, offers, strict=False):
        info.available_frequencies = offer
    with pytest.raises(PlanError, match=words):
        make_3d_parallel(PerStage)(job, infos[:2], PFOSettings())


def test_the_schedule_of_a_stage_goes_to_all_its_ranks_and_follows_results() -> None:
    scheduler = make()
    schedules = scheduler.next_schedule()
    assert [(s.rank, s.frequencies[0][1]) for s in schedules] == [(r, 900 if r < 4 else 1000) for r in range(8)]
    assert schedules[0].model_dump(exclude={"rank"}) == schedules[1].model_dump(exclude={"rank"})
    scheduler.observe([result_of(rank) for rank in range(8)])
    assert scheduler.next_schedule()[0].frequencies == [("forward", 915)]


def test_of_a_stage_the_largest_times_count_and_the_sums_of_energies_and_of_powers_that_all_ranks_know() -> None:
    found = heard([result_of(rank, time=1.0 + rank, energy=1.0 + rank) for rank in reversed(range(8))])
    assert [result.iter_time for result in found] == [[4.0, 4.0], [8.0, 8.0]]
    assert [result.iter_energy for result in found] == [[10.0, 10.0], [26.0, 26.0]]
    (alone,) = heard([result_of(1, time=3.0)], pp=1, dp=2, tp=1)
    assert alone.iter_time == [3.0, 3.0], "a missing rank does not hinder its stage"
    known = InstructionPower(instruction="forward", frequency=900, power=100, error=3, seconds=1)
    powers = [known, known.model_copy(update={"error": 4})]
    results = [result_of(n).model_copy(update={"iter_span": [1.0 + n], "powers": [powers[n]]}) for n in range(2)]
    (result,) = heard(results, pp=1, dp=2, tp=1)
    assert result.iter_span == [2.0]
    assert result.powers == [InstructionPower(instruction="forward", frequency=900, power=200, error=5, seconds=1)]
    (result,) = heard([results[0], result_of(1)], pp=1, dp=2, tp=1)
    assert result.powers == []


Rows = list[list[float]]


@pytest.mark.parametrize(
    ("first", "second", "times", "energies"),
    [
        (([[1, 5], [2, 2]], [[10, 20], [30, 40]]), ([[3, 4], [1, 9]], [[1, 2], [3, 4]]), [[3, 5], [2, 9]],
         [[11, 22], [33, 44]]),
        (([[1, 5], [2]], [[1]]), ([[3]], [[1, 2], [3]]), [[3]], [[2]]),  # as far as all ranks have them
        (([[1]], [[1]]), None, None, None),  # an instruction that a rank does not report
    ],
)  # fmt: skip
def test_breakdowns_are_combined_per_iteration_and_microbatch(
    first: tuple[Rows, Rows], second: tuple[Rows, Rows] | None, times: Rows | None, energies: Rows | None
) -> None:
    results = []
    for rank, rows in enumerate((first, second)):
        of = [{"forward": part} for part in rows] if rows else [{}, {}]
        results.append(result_of(rank).model_copy(update={"time_breakdown": of[0], "energy_breakdown": of[1]}))
    (result,) = heard(results, pp=1, dp=2, tp=1)
    assert result.time_breakdown.get("forward") == times
    assert result.energy_breakdown.get("forward") == energies


@pytest.mark.parametrize(
    ("ranks", "stages", "words"),
    [
        ([0, 1, 2, 3], [0], "no rank of stage 1 has a profiling result"),
        ([0, 4, 8], [0, 1], "result of rank 8 is left out: the job has no such rank"),
        ([0, 4, 4], [0, 1], "a second profiling result of rank 4 is left out"),
    ],
)
def test_results_that_do_not_fit_the_job_are_left_out_and_named_in_the_log(
    ranks: list[int], stages: list[int], words: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert [result.rank for result in heard([result_of(rank) for rank in ranks])] == stages
    assert words in caplog.text


def test_name_signature_and_kind_are_those_of_the_wrapped_class() -> None:
    wrapped = make_3d_parallel(PerStage)
    assert inspect.signature(wrapped) == inspect.signature(PerStage)
    assert (wrapped.__name__, make_3d_parallel(PerStage, "Mine").__name__) == ("PerStage3D", "Mine")
    assert make(step=30).inner.step == 30
    assert issubclass(wrapped, PerStage)
    assert isinstance(make(), PerStage)
    assert not issubclass(wrapped, Everything)


# ---- the whole protocol passes through


class Everything(FrequencyScheduler):
    """Uses all of the protocol, and remembers what it was told."""

    watches_iteration_times = True

    def __init__(self, job_info: Any, rank_infos: Any, pfo_settings: Any) -> None:
        super().__init__(job_info, rank_infos, pfo_settings)
        self.told: list[object] = []

    @classmethod
    def check_args(cls, **args: Any) -> None:
        if args:
            raise PlanError("takes no arguments")

    def _run(self) -> ScheduleGenerator:
        for purpose in ("measure", "run", "run"):
            results = yield ScheduleRequest(self._at(1410), purpose, f"now: {purpose}", purpose == "run")
            self.told.append(results)

    def _at(self, mhz: int) -> list[FrequencySchedule]:
        return [FrequencySchedule(rank=info.rank, frequencies=[("forward", mhz)]) for info in self.rank_infos]

    def _for_plan_inputs(self, yielded: ScheduleRequest) -> ScheduleRequest:
        slower = 15 * (self.plan_inputs.target is not None) + 30 * (self.plan_inputs.straggler is not None)
        return replace(yielded, schedules=self._at(1410 - slower))

    def react(self, plan_inputs: PlanInputs) -> None:
        super().react(plan_inputs)
        self.told.append(plan_inputs)

    def export_profile(self) -> str:
        return "a profile"

    def model(self) -> dict[str, float]:
        return {"full_time_s": 2.0}

    def assess(self, iteration_times: Any) -> PlanInputs:
        self.told.append(list(iteration_times))
        slow = {one.pipeline: one.span_s for one in iteration_times if one.span_s > 1}
        return self.plan_inputs.model_copy(update={"slow_pipelines": slow, "remeasure_epoch": 3})


plan_inputs = st.builds(
    PlanInputs,
    target=st.none() | st.just(Target(slowdown=1.1)),
    straggler=st.none() | st.builds(Straggler, slowdown=st.just(1.2), pipeline=st.none() | st.integers(0, 1)),
    remeasure_epoch=st.integers(0, 3),
)


@given(st.lists(plan_inputs | st.none(), max_size=8))
def test_a_job_of_one_rank_per_stage_gets_the_same_requests_as_without(events: list[PlanInputs | None]) -> None:
    """None stands for results."""
    job, infos = make_job(pp=2)
    direct, adapted = Everything(job, infos, PFOSettings()), make_3d_parallel(Everything)(job, infos, PFOSettings())
    for event in [*events, None]:
        for scheduler in (direct, adapted):
            scheduler.request()
            if event is None:
                scheduler.observe([result_of(0), result_of(1)])
            else:
                scheduler.react(event)
        assert adapted.request() == direct.request()
        assert adapted.done == direct.done


def test_no_public_name_of_the_protocol_is_left_to_the_base_class() -> None:
    """A new method of a policy must be handed on, or this list must say why not."""
    own_state = {"job_info", "rank_infos", "world_size", "pfo_settings", "orders", "plan_inputs"}
    made_of_others = {"next_schedule"}
    public = {name for name in vars(FrequencyScheduler) if not name.startswith("_")}
    adapter = make_3d_parallel(Everything)
    handed_on = {name for one in adapter.__mro__[:2] for name in vars(one)}
    assert public - own_state - made_of_others <= handed_on


def test_what_was_published_stays_the_request_of_the_wrapped_policy() -> None:
    scheduler = make(cls=Everything)
    published = [
        schedule.model_copy(update={"frequencies": [("forward", 900)]}) for schedule in scheduler.request().schedules
    ]
    scheduler.was_published(published)
    assert scheduler.request().schedules == published
    scheduler.react(PlanInputs(target=Target(slowdown=1.1)))
    assert {schedule.frequencies[0][1] for schedule in scheduler.request().schedules} == {1395}


def test_the_wrapped_class_knows_orders_stragglers_and_the_slowest_pipeline_by_stage() -> None:
    scheduler = make(cls=Everything)
    scheduler.orders = {4: [("backward", None)], 0: [("forward", None)]}
    told = PlanInputs(straggler=Straggler(slowdown=1.2, pipeline=1), slow_pipelines={1: 1.3})
    scheduler.react(told)
    assert scheduler.plan_inputs == told
    inner = PlanInputs(straggler=Straggler(slowdown=1.2, pipeline=0), slow_pipelines={0: 1.3})
    assert scheduler.inner.plan_inputs == inner
    assert scheduler.inner.orders == {0: [("forward", None)], 1: [("backward", None)]}
    found = scheduler.assess([IterationTime(0, 7, 1, 0.9), IterationTime(1, 7, 1, 1.5)])
    assert scheduler.inner.told == [inner, [IterationTime(0, 7, 1, 1.5)]]
    assert (found.slow_pipelines, found.remeasure_epoch) == ({1: 1.5}, 3)
    assert (scheduler.export_profile(), scheduler.model()) == ("a profile", {"full_time_s": 2.0})
    assert scheduler.watches_iteration_times
    for use, message in (
        (lambda: type(scheduler).check_args(more=1), "takes no arguments"),
        (make(cls=Beyond).next_schedule, r"Beyond3D made schedules for the stages \[2\]; the job has 2 stages"),
    ):
        with pytest.raises(PlanError, match=message):
            use()


class Beyond(FrequencyScheduler):
    def _run(self) -> ScheduleGenerator:
        yield [FrequencySchedule(rank=2, frequencies=[])]
