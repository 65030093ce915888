"""Schedules as YAML that is short, readable and the same schedules when read again."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scheduler_jobs import PLANS, make_job, one_f_one_b, schedule_of

from pfo_fs.models import FrequencySchedule, JobInfo, RankInfo
from pfo_fs.schedule_yaml import format_schedule_yaml, parse_schedule_yaml
from pfo_fs.scheduler import read_plan

Job = tuple[JobInfo, list[RankInfo]]


def write(schedules: list[FrequencySchedule], job: Job, comment: str = "") -> str:
    return format_schedule_yaml(schedules, job[1], job[0], comment=comment)


def reread(text: str, job: Job) -> list[FrequencySchedule]:
    return parse_schedule_yaml(text).resolve(*job, {})


def two_clocks(name: str) -> int:
    return 885 if name == "forward" else 870


@pytest.mark.parametrize("name", PLANS)
def test_real_plans_are_the_same_when_read_again(shared_data: Path, name: str) -> None:
    job = make_job(pp=8, dp=2)
    plan = read_plan(shared_data / "plans" / name)
    schedules = [FrequencySchedule(rank=info.rank, frequencies=plan[info.pp_rank]) for info in job[1]]
    text = write(schedules, job, f"from {name}")
    assert reread(text, job) == schedules
    assert len(text.splitlines()) < 100


def test_a_1f1b_plan_of_96_microbatches_takes_at_most_three_lines_a_stage() -> None:
    job = make_job(pp=8)
    schedules = [schedule_of(rank, one_f_one_b(rank, 8, 96), two_clocks) for rank in range(8)]
    text = write(schedules, job)
    assert len(text.splitlines()) <= 1 + 8 * 4
    assert "    - backward 870, forward 885 x88\n" in text
    assert reread(text, job) == schedules


def test_equal_stages_are_one_entry_with_a_range() -> None:
    job = make_job(pp=6)
    text = write([schedule_of(rank, ["forward"], lambda _, r=rank: 900 + (r == 3)) for rank in range(6)], job)
    assert [line for line in text.splitlines() if line.endswith(":")] == ['  "0-2,4-5":', "  3:"]


def test_many_scattered_ranks_make_a_key_that_yaml_still_reads() -> None:
    job = make_job(pp=1, dp=2000)
    schedules = [schedule_of(rank, ["forward"], lambda _, r=rank: 900 + 15 * (r % 2)) for rank in range(2000)]
    assert reread(write(schedules, job), job) == schedules


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
            stages = draw(
                st.none() | st.lists(st.integers(0, 9), min_size=len(chosen), max_size=len(chosen))
                if chosen
                else st.none()
            )
            schedules.append(FrequencySchedule(rank=rank, frequencies=chosen, stages=stages))
    return job, schedules


@settings(max_examples=150)
@given(jobs_with_schedules(), st.lists(st.integers(0, 3), max_size=1024), st.integers(0, 10**9))
def test_all_schedules_are_the_same_when_read_again(
    case: tuple[Job, list[FrequencySchedule]], turns: list[int], until: int
) -> None:
    job, schedules = case
    text = format_schedule_yaml(schedules, job[1], job[0], "a comment", turns, until)
    document = parse_schedule_yaml(text)
    assert document.resolve(*job, {}) == schedules
    assert (document.turns, document.until) == (tuple(turns), until or None)
