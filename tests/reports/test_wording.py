"""What the report says in figures is what the data bear: signs, units, more or less, and totals that add up."""

import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pfo_fs.reports.collect import JobData, Window
from pfo_fs.reports.directory import collect_directory, sums
from pfo_fs.reports.pictures import clock_bounds, life_svg
from pfo_fs.reports.savings import savings_of, steps_of, total_of
from pfo_fs.reports.summary import headline_section
from pfo_fs.reports.timeline import spans_of
from pfo_fs.reports.wording import duration_text, energy_text, percent, signed_percent, term_text
from pfo_fs.store import Files, JobFolder, SharedDirectory, bodies
from pfo_fs.store.bodies import EndBody

UNITS = {"J": 1.0, "kJ": 1e3, "MJ": 1e6, "kWh": 3.6e6, "s": 1.0, "min": 60.0, "h": 3600.0}


@given(st.floats(-10, 10), st.integers(0, 3))
def test_a_change_has_its_sign_and_zero_has_no_minus(share: float, digits: int) -> None:
    text = signed_percent(share, digits)
    value = float(text.removesuffix(" %").replace("−", "-"))
    assert abs(value - share * 100) <= 0.5 * 10**-digits + 1e-9
    assert text.startswith("−") == (value < 0)
    text = percent(share, digits)
    assert float(text.removesuffix("%")) == pytest.approx(100 * share, abs=0.5 * 10**-digits + 1e-9)
    assert text.startswith("-") == (float(text.removesuffix("%")) < 0)


@given(st.floats(0.01, 1e12))
def test_an_amount_has_a_unit_in_which_it_is_not_zero(amount: float) -> None:
    for text_of in (energy_text, duration_text):
        number, unit = text_of(amount).split()
        assert float(number.replace(",", "")) * UNITS[unit] == pytest.approx(amount, rel=0.06, abs=0.005)


def test_the_sums_of_a_job_are_all_iterations_measured_against_max_clocks(data: JobData) -> None:
    savings = savings_of(data)
    whole, against = total_of(data, savings), savings.baseline
    assert whole.iterations == data.last_step + 1
    assert whole.energy_j - whole.more_energy_j == pytest.approx(whole.iterations * against.energy_j)
    assert whole.time_s - whole.more_time_s == pytest.approx(whole.iterations * against.time_s)


def test_a_job_at_max_clocks_saves_nothing_whatever_the_energy_counters_say(data: JobData) -> None:
    measured = data.windows[1]
    top_mhz = max(data.infos[0].available_frequencies)
    schedules = {
        rank: plan.model_copy(update={"frequencies": [(name, top_mhz) for name, _ in plan.frequencies]})
        for rank, plan in measured.schedules.items()
    }
    highest = replace(measured, schedules=schedules)
    assert data.at_max_clocks(highest)
    less = replace(highest, measured=replace(highest.measured, energy_j=0.98 * highest.measured.energy_j))
    current = data.current.model_copy(update={"number": highest.number})
    savings = savings_of(replace(data, windows=[less], current=current))
    assert savings.measured.energy_j == savings.baseline.energy_j


def spread(data: JobData, spread: float) -> list[Window]:
    """The windows of a job as if its iterations scattered by this, relative."""
    return [
        replace(window, measured=replace(window.measured, time_spread=spread)) if window.measured else window
        for window in data.windows
    ]


def test_iterations_that_differ_in_work_are_not_compared_by_two_windows_and_the_page_says_why(data: JobData) -> None:
    unknown = data.model.model_copy(update={"energy_saved": None, "more_time": None})
    job = replace(data, windows=spread(data, 0.2), model=unknown)
    found = savings_of(job)
    assert found.baseline is None
    assert savings_of(replace(job, windows=spread(data, 0.01))).baseline is not None
    section = headline_section(job, found)
    assert "20 % under one schedule" in section["missing"]
    assert not any("instead of" in text for card in section["cards"] for text in card["small"])
    assert any("not compared with max clocks" in text for card in section["cards"] for text in card["small"])


def test_what_the_scheduler_knows_of_the_same_work_is_the_headline_even_if_iterations_differ(data: JobData) -> None:
    figures = {"energy_saved": 0.1, "energy_saved_error": 0.01, "more_time": 0.002, "more_time_error": 0.001}
    job = replace(data, windows=spread(data, 0.2), model=data.model.model_copy(update=figures))
    energy, time = headline_section(job, savings_of(job))["cards"][:2]
    assert energy["big"].startswith("−10.0 % ± 2.")
    assert time["big"] == "+0.20 % ± 0.20"


def test_a_single_low_clock_is_a_low_clock_on_the_scale(data: JobData) -> None:
    lowest = min(data.infos[0].available_frequencies)
    assert clock_bounds(data, [lowest]) == (lowest, max(data.infos[0].available_frequencies))


def test_a_directorys_sums_are_those_of_its_jobs(played_once: Path) -> None:
    rows = collect_directory(SharedDirectory(Files(played_once, create=False)))
    assert len(rows) == 1
    (user,), (day,) = sums(rows, lambda row: row.user).values(), sums(rows, lambda row: row.day).values()
    assert user == day
    assert user.saved_kwh == rows[0].saved_kwh


def test_jobs_that_have_ended_are_marked_for_a_sites_accounting(played: JobFolder) -> None:
    shared = SharedDirectory(played.files)
    assert [row.ended for row in collect_directory(shared)] == [False]
    played.write(EndBody(reason="finished"))
    assert [row.ended for row in collect_directory(shared)] == [True]


# ---- what reports tell of a schedule that is followed in turns, or ends at a step


YAML = bodies.Source(kind="yaml", sha256="a")
ROUND = [1, 2, 3, 0]


def index_of(number: int = 7, **term: object) -> bodies.IndexBody:
    default = {"generation": 1, "start_step": 0, "source": YAML, "files": {}, "after": -1, "turns": []}
    return bodies.IndexBody(number=number, **{**default, **term})


@pytest.mark.parametrize(
    ("term", "step", "text"),
    [
        ({}, 5, ""),
        ({"turns": ROUND}, 5, "in turns (1 2 3 0)"),
        ({"turns": [3] * 19 + [0]}, 5, "in turns (3 3 3 3 3 3 3 [...])"),
        ({"turns": [3], "until": 9, "after": 7}, 5, ""),
        ({"turns": ROUND, "until": 9, "after": 7}, 5, "in turns (1 2 3 0) until step 9, then all ranks in all steps"),
        ({"turns": ROUND, "until": 9, "after": 7}, 9, ""),
        ({"turns": ROUND, "until": 9, "after": 4}, 8, "in turns (1 2 3 0) until step 9, then schedule 4"),
        ({"until": 9}, 8, "until step 9, then default clocks"),
        ({"until": 9, "after": 4}, 9, "ended at step 9; ranks follow schedule 4"),
    ],
)
def test_a_term_is_said_as_far_as_there_is_something_to_say(term: dict[str, object], step: int, text: str) -> None:
    assert term_text(index_of(**term), step) == text


def in_turns(data: JobData) -> Window:
    """A schedule that was measured in turns, of all ranks."""
    return next(window for window in data.windows if window.without is not None and window.measured is not None)


def with_schedules(data: JobData, *windows: tuple[int, dict[str, object]], last: int) -> JobData:
    """The job as if it had these schedules: the first step and the term of each, in the order of their numbers."""
    like = in_turns(data)
    ends = [*(start for start, _ in windows[1:]), None]
    made = [
        replace(like, index=index_of(number, **{**term, "start_step": start}), end_step=ends[number])
        for number, (start, term) in enumerate(windows)
    ]
    ranks = [rank.model_copy(update={"step": last}) for rank in data.progress]
    current = data.current.model_copy(update={"number": len(made) - 1}) if data.current else None
    return replace(data, windows=made, progress=ranks, paces=[], current=current, model=None)


@pytest.fixture
def trial(data: JobData) -> JobData:
    """Schedule 1 is followed in turns from step 40 to 99, and schedule 0 again until step 199."""
    return with_schedules(data, (0, {}), (40, {"until": 100, "after": 0, "turns": ROUND}), last=199)


def test_steps_in_turns_count_by_half_and_are_compared_with_those_of_ranks_that_had_no_turn(trial: JobData) -> None:
    counts = [(window.number, bool(window.schedules), count) for window, count in steps_of(trial)]
    assert counts == [(0, True, 40), (1, True, 30), (1, False, 30), (0, True, 100)]
    like, savings = in_turns(trial), savings_of(trial)
    assert savings.baseline.energy_j == like.without.energy_j, "there are no figures of a scheduler"
    assert "in turns" in savings.baseline.origin
    total = total_of(trial, savings)
    assert total.iterations == total.known == 200
    assert total.energy_j == pytest.approx(170 * like.measured.energy_j + 30 * like.without.energy_j)


@pytest.mark.parametrize(
    ("term", "spans"),
    [
        ({"until": 100, "after": 0, "turns": ROUND}, [(0, 0, 40, 1.0), (1, 40, 100, 0.5), (0, 100, 150, 1.0)]),
        ({"until": 100, "turns": ROUND}, [(0, 0, 40, 1.0), (1, 40, 100, 0.5), (None, 100, 150, 1.0)]),
        ({"until": 100, "after": 1, "turns": ROUND}, [(0, 0, 40, 1.0), (1, 40, 100, 0.5), (1, 100, 150, 1.0)]),
        ({"turns": [1, 3]}, [(0, 0, 40, 1.0), (1, 40, 150, 0.75)]),
        ({"until": 500, "after": 0}, [(0, 0, 40, 1.0), (1, 40, 150, 1.0)]),
    ],
)
def test_a_schedule_that_another_one_replaces_has_the_steps_before(
    data: JobData, term: dict[str, object], spans: list[tuple[int | None, int, int, float]]
) -> None:
    of = with_schedules(data, (0, {}), (40, term), (150, {}), last=199)
    found = [(w.number if w else None, first, end, share) for w, first, end, share in spans_of(of, 200)]
    assert found == [*spans, (2, 150, 200, 1.0)]


def test_the_jobs_life_shows_turns_as_low_boxes_and_what_follows_in_its_own_colour(trial: JobData) -> None:
    picture = life_svg(trial, (600, 1410))
    boxes = [one for one in ElementTree.fromstring(picture) if one.tag.endswith("rect") and len(one)]
    stage_0 = [(one.attrib, one[0].text) for one in boxes if "stage 0" in (one[0].text or "")]
    assert [re.sub(r": .*?(, in turns)?$", r"\1", text) for _, text in stage_0] == [
        "schedule 0, stage 0",
        "schedule 1, stage 0, in turns",
        "schedule 0, stage 0",
    ]
    heights = [float(box["height"]) for box, _ in stage_0]
    assert heights[1] == pytest.approx(heights[0] / 2, abs=0.1)
