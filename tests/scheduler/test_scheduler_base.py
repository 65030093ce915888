"""The generator that `observe` and `next_schedule` drive; the check that every schedule passes, whoever made it, and
which results of which steps policies get."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scheduler_jobs import make_job, result_of, schedule_of

from pfo_fs.autotune.pareto_scheduler import ParetoScheduler
from pfo_fs.errors import ConfigError, PlanError
from pfo_fs.models import FrequencySchedule, ProfilingResult
from pfo_fs.scheduler import (
    FrequencyScheduler,
    Manual,
    PointSolution,
    PointSolution3D,
    ScheduleGenerator,
    ScheduleRequest,
    check_scheduler_args,
    check_schedules,
    is_builtin,
    load_scheduler,
)
from pfo_fs.scheduler.checks import plausible_results
from pfo_fs.settings import PFOSettings


class Asking(FrequencyScheduler):
    """Yields what it was given, one after another, then ends; remembers what it was told."""

    def __init__(self, *args: Any, yields: Sequence[Any] = ()) -> None:
        super().__init__(*args)
        self.yields = yields
        self.heard: list[list[int]] = []

    def _run(self) -> ScheduleGenerator:
        for one in self.yields:
            results = yield one
            self.heard.append([result.rank for result in results])


class Overridden(Asking):
    """Zeus's other style."""

    def next_schedule(self) -> list[FrequencySchedule]:
        return []


def make(cls: type[FrequencyScheduler], **args: Any) -> Any:
    job, infos = make_job(pp=2)
    return cls(job, list(reversed(infos)), PFOSettings(), **args)


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda: make(Overridden), r"Overridden overrides next_schedule\(\).*_run"),  # nothing would be published
        (lambda: make(Asking).observe([result_of(0)]), r"Asking: observe\(\) before request\(\).* 1 results"),
        (lambda: make(Asking).next_schedule(), r"Asking\._run ended before its first `yield`"),
        *(
            (lambda wrong=wrong: make(Asking, yields=[wrong]).next_schedule(), r"_run yielded .* must yield a list")
            for wrong in (None, 7, [("forward", 1200)], {"rank": 0})
        ),
    ],
)
def test_a_scheduler_that_is_wrong_or_used_wrongly_says_how(use: Callable[[], object], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        use()


def test_a_generator_gets_results_by_rank_and_its_last_schedule_stays_in_force_when_it_has_ended() -> None:
    yields = [[schedule_of(rank, ["forward"], lambda _, mhz=mhz: mhz) for rank in (0, 1)] for mhz in (1200, 900)]
    scheduler = make(Asking, yields=yields)
    seen = [scheduler.done]
    assert [info.rank for info in scheduler.rank_infos] == [0, 1]
    for expected in (1200, 900, 900, 900):
        for _ in range(2):
            assert [one.frequencies[0][1] for one in scheduler.next_schedule()] == [expected, expected]
        scheduler.observe([result_of(1), result_of(0)])
        seen.append(scheduler.done)
    assert seen == [False, False, True, True, True]
    assert scheduler.heard == [[0, 1]] * 2, "results after the end are not looked at"


AT_1200 = [FrequencySchedule(rank=0, frequencies=[("forward", 1200)])]


@pytest.mark.parametrize("yielded", [AT_1200, ScheduleRequest(AT_1200, revision=7)])
def test_a_plain_list_is_a_request_to_run_and_the_revision_is_not_the_policys(yielded: Any) -> None:
    assert make(Asking, yields=[yielded]).request() == ScheduleRequest(AT_1200, "run", "", False, revision=0)


@pytest.mark.parametrize("seconds", [math.nan, math.inf, -1.0, 1e-30, 1e30])
def test_no_policy_gets_a_result_with_an_impossible_time(seconds: float, caplog: pytest.LogCaptureFixture) -> None:
    scheduler = make(Asking, yields=[AT_1200])
    scheduler.request()
    scheduler.observe([result_of(0), result_of(1).model_copy(update={"iter_time": [seconds]})])  # not validated
    assert scheduler.heard == [[0]]
    assert "result of rank 1 is left out: it holds impossible values" in caplog.text


# ---- schedulers by name, and their arguments


MODULE = """
from pfo_fs.scheduler import FrequencyScheduler, Manual

class Mine(Manual):
    pass

class Half(FrequencyScheduler):
    pass

class Other:
    pass

number = 7
"""


@pytest.fixture
def my_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "my_policies_of_test.py").write_text(MODULE)
    (tmp_path / "my_broken_of_test.py").write_text("import no_such_module_of_ours\n")
    (tmp_path / "my_exit_of_test.py").write_text("raise SystemExit(3)\n")
    (tmp_path / "my_syntax_of_test.py").write_text("def :\n")
    monkeypatch.syspath_prepend(tmp_path)
    return "my_policies_of_test"


def test_built_in_schedulers_have_short_names_and_others_are_found_by_module_and_class(my_module: str) -> None:
    for cls in (Manual, PointSolution, PointSolution3D):
        assert load_scheduler(cls.__name__) is cls
        assert is_builtin(cls.__name__)
    assert load_scheduler(f"{my_module}:Mine").__name__ == "Mine"
    assert not any(map(is_builtin, ("pfo_fs.scheduler:Manual", "os:system", "")))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("PointSolutoin", "did you mean PointSolution"),
        ("Paradox9", "Built in are Manual, PointSolution, PointSolution3D, InstructionProfiler, ParetoScheduler"),
        ("no_such_module_of_ours:Mine", "ModuleNotFoundError: No module named 'no_such_module_of_ours'"),
        ("my_broken_of_test:Mine", "No module named 'no_such_module_of_ours'"),
        ("my_exit_of_test:Mine", "SystemExit: 3"),
        ("my_syntax_of_test:Mine", "SyntaxError"),
        ("my_policies_of_test:Yours", "no attribute 'Yours'; its schedulers are Half, Manual, Mine"),
        ("my_policies_of_test:number", "number is a int, not a subclass"),
        ("my_policies_of_test:Other", "Other is a class, but not a subclass"),
        ("my_policies_of_test:Half", "Half does not define _run"),
        ("my_policies_of_test:", "expected package.module:Class"),
        (":Mine", "expected package.module:Class"),
        ("../evil:Mine", "expected package.module:Class"),
        ("", "is unknown"),
    ],
)
def test_a_name_that_leads_nowhere_says_which_step_failed(my_module: str, name: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_scheduler(name)
    assert message in str(caught.value)


class Choosy(Manual):
    def __init__(self, job_info: Any, rank_infos: Any, pfo_settings: Any, path: str, *, step: int = 3) -> None:
        super().__init__(job_info, rank_infos, pfo_settings)


class Open(Manual):
    def __init__(self, *args: Any, path: str, **more: Any) -> None:
        super().__init__(*args)


@pytest.mark.parametrize(
    ("cls", "args", "message"),
    [
        (PointSolution, {}, "missing solution_path. Known: solution_path"),
        (PointSolution3D, {}, "missing solution_path. Known: solution_path"),
        (PointSolution, {"solution_pth": "a"}, "unexpected solution_pth (did you mean solution_path?)"),
        (Manual, {"deadline": 3}, "unexpected deadline. Known: none"),
        (Choosy, {"stp": 3}, "missing path; unexpected stp (did you mean step?)"),
        (Manual, {"job_info": 3}, "unexpected job_info"),
        (ParetoScheduler, {"tolerance": 0.003}, "unexpected tolerance"),
        (Open, {"anything": 1}, "missing path. Known: path"),
    ],
)
def test_arguments_that_do_not_fit_are_all_named_with_those_that_do(
    cls: type[FrequencyScheduler], args: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        check_scheduler_args(cls, args)
    assert message in str(caught.value)


# ---- which schedules fit a job


JOB, INFOS = make_job(pp=2, dp=2)


def schedule(rank: int, *steps: tuple[str, int], stages: list[int] | None = None) -> FrequencySchedule:
    return FrequencySchedule(rank=rank, frequencies=list(steps), stages=stages)


@pytest.mark.parametrize(
    ("schedules", "message"),
    [
        ([schedule(4, ("forward", 885))], "a schedule for rank 4, but the job has ranks 0 to 3"),
        ([schedule(1), schedule(1)], "two schedules for rank 1"),
        (
            [schedule(2, ("forward", 885), ("backward", 886))],
            "position 1 (backward) of the schedule: the GPU of rank 2 does not offer 886 MHz; nearest: 885 and 900",
        ),
        ([schedule(0, ("forward", 5000))], "nearest: 1395 and 1410"),
        ([schedule(0, ("forward", 1))], "nearest: 210 and 225"),
    ],
)
def test_a_schedule_that_cannot_be_run_is_named(schedules: list[FrequencySchedule], message: str) -> None:
    with pytest.raises(PlanError) as caught:
        check_schedules(schedules, JOB, INFOS)
    assert message in str(caught.value)


def test_stages_are_compared_where_both_sides_give_them() -> None:
    planned = schedule(0, ("forward", 885), ("forward", 885), stages=[0, 2])
    unknown = schedule(3, ("forward", 885))
    check_schedules([planned, unknown], JOB, INFOS, {0: [("forward", 0), ("forward", None)], 3: None})
    with pytest.raises(PlanError, match="expected forward@3, got forward@2"):
        check_schedules([planned], JOB, INFOS, {0: [("forward", 0), ("forward", 3)]})


def test_ranks_that_share_one_list_are_still_checked_for_their_own_gpu() -> None:
    job, infos = make_job(pp=1, dp=2)
    infos[1].available_frequencies = [1200]
    first = schedule(0, ("forward", 885))
    with pytest.raises(PlanError, match="rank 1 does not offer 885"):
        check_schedules([first, first.model_copy(update={"rank": 1})], job, infos)


# ---- ranks may begin to measure a step apart, and leave steps out


def result(rank: int, steps: list[int]) -> ProfilingResult:
    """In each of these steps, everything lasts as long as the number of the step says."""
    of_step = [float(step) for step in steps]
    return ProfilingResult(
        rank=rank,
        iter_step=steps,
        iter_time=of_step,
        iter_energy=of_step,
        iter_span=of_step,
        time_breakdown={"forward": [[each, each] for each in of_step]},
        energy_breakdown={"forward": [[each, each] for each in of_step]},
        clock_breakdown={"forward": [[step, step] for step in steps]},
    )


def taken(*results: ProfilingResult) -> list[ProfilingResult]:
    return plausible_results(results, range(len(results)))


@given(st.lists(st.integers(100, 103), min_size=1, max_size=5), st.lists(st.integers(104, 130), max_size=2))
def test_iterations_of_all_ranks_are_of_the_same_steps(firsts: list[int], left_out: list[int]) -> None:
    steps = [list(range(first, first + 20)) for first in firsts]
    steps[0] = [step for step in steps[0] if step not in left_out]
    found = taken(*(result(rank, each) for rank, each in enumerate(steps)))
    common = sorted(set.intersection(*map(set, steps)))
    assert found == [result(rank, common) for rank in range(len(steps))]


@pytest.mark.parametrize(
    "odd",
    [
        {"iter_step": [6, 6, 7]},
        {"iter_step": [8, 7, 6]},
        {"iter_step": [6, 7, 8, 9, 10]},
        {"iter_energy": [1.0]},
        {"iter_span": [1.0]},
        {"time_breakdown": {"forward": [[1.0]]}},
    ],
)
def test_nothing_is_left_out_by_steps_that_cannot_be(odd: dict[str, object]) -> None:
    results = [result(0, [6, 7, 8]).model_copy(update=odd), result(1, [7, 8, 9])]
    assert taken(*results) == results
