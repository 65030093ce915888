"""A document held against a job: who gets what, and what does not fit."""

from __future__ import annotations

import pickle

import pytest
from scheduler_jobs import Order, make_job, misfits_of, one_f_one_b, order_of, unknown_of

from pfo_fs.errors import PlanError
from pfo_fs.models import FrequencySchedule, JobInfo, RankInfo
from pfo_fs.schedule_yaml import parse_schedule_yaml
from pfo_fs.scheduler import check_schedules

JOB, INFOS = make_job(pp=4, dp=2)
ORDERS: dict[int, Order] = {info.rank: order_of(one_f_one_b(info.pp_rank, 4, 12)) for info in INFOS}


def resolve(
    text: str, orders: dict[int, Order] | None = None, job: tuple[JobInfo, list[RankInfo]] = (JOB, INFOS)
) -> dict[int, FrequencySchedule]:
    schedules = parse_schedule_yaml(text).resolve(*job, ORDERS if orders is None else orders)
    check_schedules(schedules, *job, ORDERS if orders is None else orders)
    assert [schedule.rank for schedule in schedules] == sorted(schedule.rank for schedule in schedules)
    return {schedule.rank: schedule for schedule in schedules}


def clocks(schedule: FrequencySchedule) -> set[tuple[str, int]]:
    return set(schedule.frequencies)


# ---- who gets what


def test_all_goes_to_every_instruction_of_every_rank() -> None:
    schedules = resolve("all: 1200")
    assert len(schedules) == 8
    assert schedules[7].frequencies == [(name, 1200) for name in one_f_one_b(3, 4, 12)]


def test_a_stage_wins_over_all() -> None:
    schedules = resolve("all: 1200\nstages: {1: 900}")
    assert [next(iter(clocks(schedules[rank])))[1] for rank in range(8)] == [1200, 1200, 900, 900] + [1200] * 4


def test_a_rank_wins_over_its_stage() -> None:
    schedules = resolve("stages: {1: 900}\nranks: {3: 1305}")
    assert clocks(schedules[2]) == {("forward", 900), ("backward", 900)}
    assert clocks(schedules[3]) == {("forward", 1305), ("backward", 1305)}


def test_who_is_not_mentioned_is_left_alone() -> None:
    assert set(resolve("stages: {1: 900}")) == {2, 3}


def test_0_leaves_a_rank_alone_that_its_stage_would_set() -> None:
    assert set(resolve("stages: {1: 900}\nranks: {3: 0}")) == {2}


def test_0_for_all_is_no_schedule_for_anybody_and_needs_no_order() -> None:
    assert resolve("all: 0", orders={}) == {}


def test_a_range_goes_to_all_in_it() -> None:
    assert set(resolve("ranks: {0-2: 900, '5,7': 1200}")) == {0, 1, 2, 5, 7}


def test_a_mapping_gives_each_name_its_clock() -> None:
    schedules = resolve("stages: {0: {forward: 1200, backward: 1110}}")
    assert clocks(schedules[0]) == {("forward", 1200), ("backward", 1110)}


def test_a_name_that_a_mapping_leaves_out_is_left_alone() -> None:
    assert clocks(resolve("stages: {0: {forward: 1200}}")[0]) == {("forward", 1200), ("backward", 0)}


def test_a_name_that_a_mapping_leaves_out_falls_back_to_all() -> None:
    assert clocks(resolve("all: 900\nstages: {0: {forward: 1200}}")[0]) == {("forward", 1200), ("backward", 900)}


def test_a_mapping_of_a_rank_falls_back_to_the_list_of_its_stage() -> None:
    order = order_of(["forward", "forward", "backward"])
    text = "stages:\n  0: [forward 885, forward 900, backward 870]\nranks: {0: {backward: 1200}}"
    schedules = resolve(text, {0: order, 1: order})
    assert schedules[0].frequencies == [("forward", 885), ("forward", 900), ("backward", 1200)]
    assert schedules[1].frequencies == [("forward", 885), ("forward", 900), ("backward", 870)]


def test_a_name_counts_if_any_rank_of_its_entry_runs_it() -> None:
    orders = {0: order_of(["forward"]), 1: order_of(["forward", "recomputation"])}
    schedules = resolve("all: {forward: 900, recomputation: 1200}", orders, make_job(pp=2))
    assert schedules[1].frequencies == [("forward", 900), ("recomputation", 1200)]


def test_a_list_needs_no_known_order() -> None:
    schedules = resolve("stages:\n  2:\n    - forward 885 x2\n    - backward 870 x2", orders={})
    assert schedules[4].frequencies == [("forward", 885)] * 2 + [("backward", 870)] * 2
    assert set(schedules) == {4, 5}


def test_the_example_of_a_1f1b_stage_fits_its_order() -> None:
    text = "stages:\n  1:\n    - forward 885 x3\n    - backward 870, forward 885 x9\n    - backward 870 x3\n"
    assert len(resolve(text)[2].frequencies) == 24


def test_ranks_that_offer_no_clocks_may_be_given_any() -> None:
    job = make_job(pp=1, clocks=[])
    assert clocks(resolve("all: 123", {0: order_of(["forward"])}, job)[0]) == {("forward", 123)}


# ---- ranks that hold several stages

V_ORDER: Order = [("forward", 0), ("forward", 3), ("backward", 3), ("backward", 0)]
V_JOB = make_job(pp=2)


def test_an_entry_of_a_stage_goes_to_the_instructions_of_that_stage_on_any_rank() -> None:
    orders: dict[int, Order] = {0: V_ORDER, 1: [("forward", 1), ("forward", 2), ("backward", 2), ("backward", 1)]}
    schedules = resolve("stages: {0: 900, 3: 1200}", orders, V_JOB)
    assert schedules[0].frequencies == [("forward", 900), ("forward", 1200), ("backward", 1200), ("backward", 900)]
    assert schedules[0].stages == [0, 3, 3, 0]
    assert set(schedules) == {0}


def test_a_list_of_a_stage_is_held_against_the_instructions_of_that_stage() -> None:
    schedules = resolve("stages: {3: [forward 900, backward 1200]}", {0: V_ORDER, 1: V_ORDER}, V_JOB)
    assert schedules[0].frequencies == [("forward", 0), ("forward", 900), ("backward", 1200), ("backward", 0)]


def test_a_name_with_a_stage_wins_over_the_name_alone() -> None:
    schedules = resolve("ranks: {0: {forward: 900, forward@3: 1200}}", {0: V_ORDER}, V_JOB)
    assert schedules[0].frequencies[:2] == [("forward", 900), ("forward", 1200)]


def test_a_list_with_stages_becomes_a_schedule_with_stages() -> None:
    schedules = resolve(
        "ranks: {0: [forward@0 900, forward@3 1200, backward@3 870, backward@0 885]}", {0: V_ORDER}, V_JOB
    )
    assert schedules[0].stages == [0, 3, 3, 0]


# ---- what does not fit


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("# x\nall: 886", 2, "the GPU of ranks 0, 1, 2, 3 and 4 more does not offer 886 MHz; nearest: 885 and 900"),
        ("ranks:\n  3: 5000", 2, "the GPU of rank 3 does not offer 5000 MHz; nearest: 1395 and 1410"),
        ("stages:\n  0: {forward: 1200, backward: 7}", 2, "does not offer 7 MHz; nearest: 210 and 225"),
        ("stages:\n  4: 1200", 2, "stage 4: this job has the stages 0 to 3"),
        ("ranks:\n  5-8: 1200", 2, "rank 8: this job has the ranks 0 to 7"),
        ("ranks:\n  0-999999: 1200", 2, "rank 999999: this job has the ranks 0 to 7"),
        ("all: {forwrd: 1200}", 1, "no instruction 'forwrd' runs there; did you mean 'forward'?"),
        ("ranks:\n  6: {zzz: 1200}", 2, "rank 6: no instruction 'zzz' runs there; there are backward, forward"),
        ("ranks:\n  6: {forward@0: 1200}", 2, "rank 6: no instruction 'forward@0' runs there"),
        (
            "stages:\n  3:\n    - forward 885\n    - backward 870 x12\n    - forward 885 x11",
            4,
            "at position 2 (counted from 0) of ranks 6, 7: expected forward, got backward",
        ),
        (
            "stages:\n  3:\n    - forward 885\n    - backward 870, forward 885 x11\n",
            4,
            "at position 23 (counted from 0) of ranks 6, 7: expected backward, the list ends; "
            "24 instructions expected, got 23",
        ),
        (
            "ranks:\n  7:\n    - forward 885, backward 870 x12\n    - forward 885\n    - forward 885\n",
            4,
            "at position 24 (counted from 0) of rank 7: expected the end, got forward; "
            "24 instructions expected, got 26",
        ),
        ("ranks: {7: []}", 1, "24 instructions expected, got 0"),
    ],
)
def test_what_does_not_fit_is_reported_with_line_and_reason(text: str, line: int, reason: str) -> None:
    ((found_line, found),) = misfits_of(text, JOB, INFOS, ORDERS)
    assert reason in found
    assert found_line == line


def test_everything_that_does_not_fit_is_reported_at_once() -> None:
    text = "all: 886\nstages:\n  9: 3\nranks:\n  0: [forward 1200]\n  1: {backwrd: 900}\n"
    assert [line for line, _ in misfits_of(text, JOB, INFOS, ORDERS)] == [1, 3, 5, 6]


def test_clocks_of_a_list_are_checked_before_its_order_is_known() -> None:
    assert misfits_of("all:\n  - forward 885\n  - forward 886", JOB, INFOS)[0][0] == 3


def test_gpus_that_differ_are_reported_apart() -> None:
    job, infos = make_job(pp=1, dp=2)
    infos[1].available_frequencies = [1000, 1100]
    ((_, reason),) = misfits_of("all: 900", job, infos, {0: order_of(["f"]), 1: order_of(["f"])})
    assert reason == "the GPU of rank 1 does not offer 900 MHz; nearest: 1000 and 1100"


# ---- orders that are not known yet


@pytest.mark.parametrize("text", ["\nall: 1200", "\nall: {forward: 1200}"])
def test_a_number_or_mapping_waits_for_the_order(text: str) -> None:
    error = unknown_of(text, JOB, INFOS, {rank: ORDERS[rank] for rank in (0, 1, 2)})
    assert (error.ranks, error.line) == ([3, 4, 5, 6, 7], 2)
    assert "ranks 3, 4, 5, 6, 7 are not known" in str(error)


def test_a_rank_that_a_list_covers_does_not_wait() -> None:
    assert unknown_of("all: 1200\nranks: {0-6: [forward 885]}", JOB, INFOS).ranks == [7]


def test_what_can_be_told_already_is_told_before_waiting() -> None:
    assert misfits_of("all: 1200\nranks: {9: 3}", JOB, INFOS)[0][0] == 2


def test_a_name_is_not_called_a_typo_while_a_rank_that_may_run_it_is_unknown() -> None:
    assert unknown_of("all: {recomputation: 1200}", JOB, INFOS, {0: ORDERS[0]}).ranks == list(range(1, 8))


def test_an_unknown_order_survives_pickling() -> None:
    error = unknown_of("all: 1200", JOB, INFOS)
    again = pickle.loads(pickle.dumps(error))
    assert (again.ranks, again.line, str(again)) == (error.ranks, error.line, str(error))


def test_16384_ranks_are_resolved_in_seconds() -> None:
    job, infos = make_job(pp=8, dp=2048)
    orders = {info.rank: order_of(one_f_one_b(info.pp_rank, 8, 96)) for info in infos}
    document = parse_schedule_yaml("all: 1200\nstages: {0-3: {forward: 900}}\nranks: {77: 1305}")
    assert len(document.resolve(job, infos, orders)) == 16_384


def test_entries_of_their_own_for_very_many_ranks_are_refused_before_they_take_minutes() -> None:
    job, infos = make_job(pp=1, dp=200)
    order = order_of([f"name {number}" for number in range(10_000)])
    orders = dict.fromkeys(range(200), order)
    assert len(resolve("ranks: {0-199: 900}", orders, (job, infos))) == 200
    with pytest.raises(PlanError, match="write ranges of ranks"):
        resolve("ranks:\n" + "".join(f" {rank}: 900\n" for rank in range(200)), orders, (job, infos))


def test_of_very_many_names_that_no_rank_runs_some_are_reported() -> None:
    names = ", ".join(f"other{number}: 900" for number in range(5000))
    assert 1 <= len(misfits_of(f"all: {{{names}}}", JOB, INFOS, ORDERS)) <= 40
