"""A document held against a job: who gets what, and what does not fit; schedules as YAML that is short, readable and
the same schedules when read again."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scheduler_jobs import Order, make_job, one_f_one_b, order_of, problems_of, schedule_of, unknown_of

from pfo_fs.errors import PlanError
from pfo_fs.models import FrequencySchedule, JobInfo, RankInfo
from pfo_fs.schedule_yaml import format_schedule_yaml, parse_schedule_yaml
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


# ---- who gets what


@pytest.mark.parametrize(
    ("text", "clocks"),
    [
        ("all: 1200", {(0, 1, 2, 3, 4, 5, 6, 7): (1200, 1200)}),
        ("all: 0", {}),
        ("all: 1200\nstages: {1: 900}", {(0, 1, 4, 5, 6, 7): (1200, 1200), (2, 3): (900, 900)}),
        ("stages: {1: 900}\nranks: {3: 1305}", {(2,): (900, 900), (3,): (1305, 1305)}),
        ("stages: {1: 900}\nranks: {3: 0}", {(2,): (900, 900)}),
        ("ranks: {0-2: 900, '5,7': 1200}", {(0, 1, 2): (900, 900), (5, 7): (1200, 1200)}),
        ("stages: {0: {forward: 1200, backward: 1110}}", {(0, 1): (1200, 1110)}),
        ("stages: {0: {forward: 1200}}", {(0, 1): (1200, 0)}),
        ("stages: {0: {forward: 1200}, 2: 900}\nranks: {0: 0}", {(1,): (1200, 0), (4, 5): (900, 900)}),
        ("all: {backward: 900}\nstages: {0: {forward: 1200}}", {(0, 1): (1200, 900), (2, 3, 4, 5, 6, 7): (0, 900)}),
        ("stages:\n  1:\n    - forward 885 x3\n    - backward 870, forward 885 x9\n    - backward 870 x3\n",
         {(2, 3): (885, 870)}),
    ],
)  # fmt: skip
def test_ranks_win_over_stages_and_stages_over_all(text: str, clocks: dict[tuple[int, ...], tuple[int, int]]) -> None:
    expected = {
        rank: [(name, of[name != "forward"]) for name, _ in ORDERS[rank]]
        for ranks, of in clocks.items()
        for rank in ranks
    }
    assert {rank: schedule.frequencies for rank, schedule in resolve(text).items()} == expected


V_ORDER: Order = [("forward", 0), ("forward", 3), ("backward", 3), ("backward", 0)]
INNER: Order = [("forward", 1), ("forward", 2), ("backward", 2), ("backward", 1)]
FFB = order_of(["forward", "forward", "backward"])


@pytest.mark.parametrize(
    ("text", "orders", "clocks"),
    [
        # A mapping of a rank falls back to the list of its stage.
        ("stages:\n  0: [forward 885, forward 900, backward 870]\nranks: {0: {backward: 1200}}", {0: FFB, 1: FFB},
         {0: [885, 900, 1200]}),
        # A name counts if any rank of its entry runs it.
        ("all: {forward: 900, recomputation: 1200}", {0: order_of(["forward"]), 1: order_of(["recomputation"])},
         {0: [900], 1: [1200]}),
        # A list needs no known order.
        ("stages:\n  1:\n    - forward 885 x2\n    - backward 870 x2", {}, {1: [885, 885, 870, 870]}),
        # Where ranks hold several stages, an entry of a stage is for its instructions on any rank.
        ("stages: {0: 900, 3: 1200}", {0: V_ORDER, 1: INNER}, {0: [900, 1200, 1200, 900]}),
        ("stages: {3: [forward 900, backward 1200]}", {0: V_ORDER}, {0: [0, 900, 1200, 0]}),
        ("ranks: {0: {forward: 900, forward@3: 1200}}", {0: V_ORDER}, {0: [900, 1200, 0, 0]}),
        ("ranks: {0: [forward@0 900, forward@3 1200, backward@3 870, backward@0 885]}", {0: V_ORDER},
         {0: [900, 1200, 870, 885]}),
    ],
)  # fmt: skip
def test_each_instruction_gets_the_clock_of_the_first_entry_that_has_one(
    text: str, orders: dict[int, Order], clocks: dict[int, list[int]]
) -> None:
    schedules = resolve(text, {1: INNER, **orders} if orders else {}, make_job(pp=2))
    assert {rank: [mhz for _, mhz in schedule.frequencies] for rank, schedule in schedules.items()} == clocks
    assert all(schedule.stages == [0, 3, 3, 0] for rank, schedule in schedules.items() if orders.get(rank) == V_ORDER)


def test_ranks_that_offer_no_clocks_may_be_given_any_and_0_for_all_needs_no_order() -> None:
    job = make_job(pp=1, clocks=[])
    assert resolve("all: 123", {0: order_of(["forward"])}, job)[0].frequencies == [("forward", 123)]
    assert resolve("all: 0", orders={}) == {}


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
    ((found_line, found),) = problems_of(text, JOB, INFOS, ORDERS)
    assert reason in found
    assert found_line == line


def test_everything_that_does_not_fit_is_reported_at_once() -> None:
    text = "all: 886\nstages:\n  9: 3\nranks:\n  0: [forward 1200]\n  1: {backwrd: 900}\n"
    assert [line for line, _ in problems_of(text, JOB, INFOS, ORDERS)] == [1, 3, 5, 6]


def test_clocks_of_a_list_are_checked_before_its_order_is_known() -> None:
    assert problems_of("all:\n  - forward 885\n  - forward 886", JOB, INFOS)[0][0] == 3


def test_gpus_that_differ_are_reported_apart() -> None:
    job, infos = make_job(pp=1, dp=2)
    infos[1].available_frequencies = [1000, 1100]
    ((_, reason),) = problems_of("all: 900", job, infos, {0: order_of(["f"]), 1: order_of(["f"])})
    assert reason == "the GPU of rank 1 does not offer 900 MHz; nearest: 1000 and 1100"


# ---- orders that are not known yet


@pytest.mark.parametrize("text", ["\nall: 1200", "\nall: {forward: 1200}"])
def test_a_number_or_mapping_waits_for_the_order(text: str) -> None:
    error = unknown_of(text, JOB, INFOS, {rank: ORDERS[rank] for rank in (0, 1, 2)})
    assert (error.ranks, error.line) == ([3, 4, 5, 6, 7], 2)
    assert "ranks 3, 4, 5, 6 and 1 more are not known" in str(error)


def test_a_name_is_not_called_a_typo_while_a_rank_that_may_run_it_is_unknown() -> None:
    assert unknown_of("all: {recomputation: 1200}", JOB, INFOS, {0: ORDERS[0]}).ranks == list(range(1, 8))


def test_entries_of_their_own_for_very_many_ranks_are_refused_before_they_take_minutes() -> None:
    job, infos = make_job(pp=1, dp=200)
    order = order_of([f"name {number}" for number in range(10_000)])
    orders = dict.fromkeys(range(200), order)
    assert len(resolve("ranks: {0-199: 900}", orders, (job, infos))) == 200
    with pytest.raises(PlanError, match="write ranges of ranks"):
        resolve("ranks:\n" + "".join(f" {rank}: 900\n" for rank in range(200)), orders, (job, infos))


def test_of_very_many_names_that_no_rank_runs_some_are_reported() -> None:
    names = ", ".join(f"other{number}: 900" for number in range(5000))
    assert 1 <= len(problems_of(f"all: {{{names}}}", JOB, INFOS, ORDERS)) <= 40


# ---- as text


Job = tuple[JobInfo, list[RankInfo]]
CLOCK_OF = {"forward": 885, "backward": 870}


def write(schedules: list[FrequencySchedule], job: Job, comment: str = "") -> str:
    return format_schedule_yaml(schedules, job[1], job[0], comment=comment)


def test_a_1f1b_plan_of_96_microbatches_takes_at_most_three_lines_a_stage() -> None:
    job = make_job(pp=8)
    schedules = [schedule_of(rank, one_f_one_b(rank, 8, 96), CLOCK_OF.get) for rank in range(8)]
    text = write(schedules, job)
    assert len(text.splitlines()) <= 1 + 8 * 4
    assert "    - backward 870, forward 885 x88\n" in text
    assert parse_schedule_yaml(text).resolve(*job, {}) == schedules


def test_equal_stages_are_one_entry_with_a_range() -> None:
    job = make_job(pp=6)
    text = write([schedule_of(rank, ["forward"], lambda _, r=rank: 900 + (r == 3)) for rank in range(6)], job)
    assert [line for line in text.splitlines() if line.endswith(":")] == ['  "0-2,4-5":', "  3:"]


def test_many_scattered_ranks_make_a_key_that_yaml_still_reads() -> None:
    job = make_job(pp=1, dp=2000)
    schedules = [schedule_of(rank, ["forward"], lambda _, r=rank: 900 + 15 * (r % 2)) for rank in range(2000)]
    assert parse_schedule_yaml(write(schedules, job)).resolve(*job, {}) == schedules


def test_a_comment_goes_to_the_top_line_by_line() -> None:
    job = make_job(pp=1)
    text = write([], job, "one\ntwo\u2028all: 3\x07\r\nthree")
    assert text == "# one\n# two\n# all: 3?\n# three\nall: 0\n"


names = st.one_of(
    st.sampled_from(["forward", "backward", "backward_weight"]),
    st.text(st.characters(exclude_categories=["C", "Z"]) | st.just(" "), min_size=1, max_size=12),
    st.sampled_from(["0", "x3", "f@2", "a b", "a,b", 'a"b', "it's", "- a", "#", "null", "a: b", "&a", "*", "{"]),
)
steps = st.tuples(names, st.integers(0, 60_000))
runs = st.lists(st.tuples(st.lists(steps, min_size=1, max_size=3), st.integers(1, 5)), max_size=5).map(
    lambda groups: [step for group, count in groups for step in group * count]
)


@st.composite
def jobs_with_schedules(draw: st.DrawFn) -> tuple[Job, list[FrequencySchedule]]:
    job = make_job(draw(st.integers(1, 4)), draw(st.integers(1, 3)), clocks=[])
    choices = draw(st.lists(runs, min_size=1, max_size=3))
    schedules = []
    for rank in range(job[0].world_size):
        chosen = draw(st.sampled_from([None, *choices]))
        if chosen is not None:
            stages = draw(st.none() | st.lists(st.integers(0, 9), min_size=len(chosen), max_size=len(chosen)))
            schedules.append(FrequencySchedule(rank=rank, frequencies=chosen, stages=stages or None))
    return job, schedules


@settings(max_examples=100)
@given(jobs_with_schedules(), st.lists(st.integers(0, 3), max_size=1024), st.integers(0, 10**9))
@example((make_job(1, 1, clocks=[]), []), [], 10**9)
def test_schedules_survive_their_yaml(case: tuple[Job, list[FrequencySchedule]], turns: list[int], until: int) -> None:
    job, schedules = case
    text = format_schedule_yaml(schedules, job[1], job[0], "a comment", turns, until)
    document = parse_schedule_yaml(text)
    assert document.resolve(*job, {}) == schedules
    assert (document.turns, document.until) == (tuple(turns), until or None)
