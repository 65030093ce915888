"""What reports tell of a schedule that is followed in turns, or ends at a step."""

from __future__ import annotations

import re
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from pfo_fs.reports.collect import JobData, Window
from pfo_fs.reports.pictures import life_svg
from pfo_fs.reports.savings import savings_of, steps_of, total_of
from pfo_fs.reports.timeline import spans_of
from pfo_fs.reports.wording import term_text
from pfo_fs.store import bodies

YAML = bodies.Source(kind="yaml", sha256="a")
ROUND = [1, 2, 3, 0]


def index_of(number: int = 7, **term: object) -> bodies.IndexBody:
    return bodies.IndexBody(
        number=number, generation=1, start_step=0, source=YAML, files={}, **{"after": -1, "turns": [], **term}
    )


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


def measured(data: JobData) -> Window:
    """A schedule that was measured in turns, of all ranks."""
    return next(window for window in data.windows if window.without is not None and window.measured is not None)


def job(data: JobData, *windows: tuple[int, dict[str, object]], last: int) -> JobData:
    """The job as if it had these schedules: the first step and the term of each, in the order of their numbers."""
    like = measured(data)
    starts = [start for start, _ in windows]
    made = [
        replace(
            like,
            index=index_of(number, **term).model_copy(update={"start_step": start}),
            end_step=starts[number + 1] if number + 1 < len(starts) else None,
        )
        for number, (start, term) in enumerate(windows)
    ]
    ranks = [rank.model_copy(update={"step": last}) for rank in data.progress]
    current = data.current.model_copy(update={"number": len(made) - 1}) if data.current else None
    return replace(data, windows=made, progress=ranks, paces=[], current=current, model=None)


@pytest.fixture
def trial(data: JobData) -> JobData:
    """Schedule 1 is followed in turns from step 40 to 99, and schedule 0 again until step 199."""
    return job(data, (0, {}), (40, {"until": 100, "after": 0, "turns": ROUND}), last=199)


def test_steps_in_turns_count_by_half(trial: JobData) -> None:
    counts = [(window.number, bool(window.schedules), count) for window, count in steps_of(trial)]
    assert counts == [(0, True, 40), (1, True, 30), (1, False, 30), (0, True, 100)]
    like = measured(trial)
    total = total_of(trial, savings_of(trial))
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
    of = job(data, (0, {}), (40, term), (150, {}), last=199)
    found = [(w.number if w else None, first, end, share) for w, first, end, share in spans_of(of, 200)]
    assert found == [*spans, (2, 150, 200, 1.0)]


def test_without_a_scheduler_s_figures_a_schedule_is_compared_with_the_ranks_that_had_no_turn(trial: JobData) -> None:
    savings, like = savings_of(trial), measured(trial)
    assert savings.baseline.energy_j == like.without.energy_j
    assert "in turns" in savings.baseline.origin


def test_ranks_that_follow_a_lower_clock_take_less_energy_than_the_same_ranks_without(data: JobData) -> None:
    window = measured(data)
    assert window.measured.energy_j < 0.99 * window.without.energy_j
    assert window.measured.ranks == window.without.ranks == 8


def test_the_jobs_life_shows_turns_as_low_boxes_and_what_follows_in_its_own_colour(trial: JobData) -> None:
    picture = life_svg(trial, (600, 1410))
    boxes = [
        (element.attrib, element[0].text)
        for element in ElementTree.fromstring(picture)
        if element.tag.endswith("rect") and len(element)
    ]
    stage_0 = [(box, text) for box, text in boxes if text and "stage 0" in text]
    assert [re.sub(r": .*?(, in turns)?$", r"\1", text) for _, text in stage_0] == [
        "schedule 0, stage 0",
        "schedule 1, stage 0, in turns",
        "schedule 0, stage 0",
    ]
    heights = [float(box["height"]) for box, _ in stage_0]
    assert heights[1] == pytest.approx(heights[0] / 2, abs=0.1)
