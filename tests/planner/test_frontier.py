"""Frontiers: computed in pieces, interrupted, resumed, kept in one file."""

from __future__ import annotations

import dataclasses
import random
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from planner_problems import problems, random_profile

from pfo_fs.errors import ConfigError, Impossible, PlanError
from pfo_fs.planner import (
    Planner,
    Problem,
    even_deadlines,
    frontier,
    make_pipeline,
    solve_frontier,
)
from pfo_fs.planner.frontier import load_frontier


def make_problem(microbatches: int = 6) -> Problem:
    pipeline = make_pipeline("1f1b", 3, microbatches)
    return Problem(pipeline, random_profile(random.Random(3), pipeline, 10), 70.0)


@pytest.fixture
def problem() -> Problem:
    return make_problem()


def test_deadlines_go_evenly_from_the_fastest_plan_to_that_of_least_energy(problem: Problem) -> None:
    planner = Planner(problem)
    deadlines = even_deadlines(planner, 11)
    assert (deadlines[0], deadlines[-1]) == (planner.fastest_s, planner.least_energy_s)
    assert even_deadlines(planner, 2) == [planner.fastest_s, planner.least_energy_s]
    steps = [later - earlier for earlier, later in pairwise(deadlines)]
    assert max(steps) == pytest.approx(min(steps))


@pytest.mark.parametrize("points", [-1, 0, 1, 10**6])
def test_a_frontier_of_so_many_points_is_refused(problem: Problem, points: int) -> None:
    with pytest.raises(ConfigError, match="points"):
        even_deadlines(Planner(problem), points)


@pytest.mark.slow
@settings(max_examples=8)
@given(problems())
def test_a_frontier_survives_the_way_to_its_file_and_back(
    tmp_path_factory: pytest.TempPathFactory, problem: Problem
) -> None:
    path = tmp_path_factory.mktemp("frontier") / "f.jsonl"
    plans = list(solve_frontier(problem, even_deadlines(Planner(problem), 4), path))
    assert load_frontier(path, problem) == {plan.deadline_s: plan for plan in plans}


def test_an_interrupted_frontier_goes_on_where_it_was(problem: Problem, tmp_path: Path) -> None:
    path = tmp_path / "f.jsonl"
    deadlines = even_deadlines(Planner(problem), 9)
    first = list(solve_frontier(problem, deadlines[:4], path))
    with path.open("ab") as file:  # killed in the middle of a record
        file.write(b'{"deadline_s": 1.2')
    second = list(solve_frontier(problem, deadlines, path))
    assert second[:4] == first
    assert [plan.seconds for plan in second[:4]] == [plan.seconds for plan in first]  # not computed again
    assert len(load_frontier(path, problem)) == 9


def test_a_frontier_whose_reader_stops_keeps_what_was_found(
    problem: Problem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frontier, "_MOST", 2)
    path = tmp_path / "f.jsonl"
    coming = solve_frontier(problem, even_deadlines(Planner(problem), 9), path)
    found = [next(coming) for _ in range(3)]
    coming.close()
    kept = load_frontier(path, problem)
    assert {plan.deadline_s for plan in found} <= kept.keys()
    assert len(kept) < 9


def test_workers_find_what_one_process_finds(problem: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frontier, "_MOST", 4)
    deadlines = even_deadlines(Planner(problem), 8)
    alone = {plan.deadline_s: plan.energy_j for plan in solve_frontier(problem, deadlines)}
    together = {plan.deadline_s: plan.energy_j for plan in solve_frontier(problem, deadlines, workers=2)}
    assert together == pytest.approx(alone, rel=0.01)  # another basis to start from, other plans of equal quality


def test_what_a_worker_finds_impossible_is_said_with_its_figures(
    problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frontier, "_MOST", 1)
    fastest_s = Planner(problem).fastest_s
    with pytest.raises(Impossible) as caught:
        list(solve_frontier(problem, [0.5 * fastest_s, fastest_s], workers=2))
    assert (caught.value.asked, caught.value.best) == (0.5 * fastest_s, fastest_s)


def test_the_frontier_of_another_problem_is_refused(problem: Problem, tmp_path: Path) -> None:
    path = tmp_path / "f.jsonl"
    list(solve_frontier(problem, [Planner(problem).fastest_s], path))
    for other in (make_problem(7), dataclasses.replace(problem, blocking_power_w=71.0)):
        with pytest.raises(PlanError, match="another problem"):
            load_frontier(path, other)


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("stage,instruction\n", "line 1"),
        ('{"format": "other"}\n', "not a frontier file"),
        ("HEADER{}\n", "line 2"),
        ('HEADER{"deadline_s": 1, "clocks_mhz": [[1400, 99999999999]], "solver": "", "seconds": 0}\n', "line 2"),
        ('HEADER{"deadline_s": 1, "clocks_mhz": [[1400, 7], [1400, -1]], "solver": "", "seconds": 0}\n', "line 2"),
        ("HEADER" + "[" * 100_000 + "\n", "line 2"),
    ],
)
def test_a_file_that_is_no_frontier_is_refused(problem: Problem, tmp_path: Path, content: str, named: str) -> None:
    path = tmp_path / "f.jsonl"
    list(solve_frontier(problem, [Planner(problem).fastest_s], path))
    header = path.read_text().splitlines(keepends=True)[0]
    path.write_text(content.replace("HEADER", header))
    with pytest.raises(PlanError, match=named):
        load_frontier(path, problem)


def test_a_frontier_file_that_was_killed_in_its_first_line_starts_afresh(problem: Problem, tmp_path: Path) -> None:
    path = tmp_path / "f.jsonl"
    deadlines = even_deadlines(Planner(problem), 4)
    list(solve_frontier(problem, deadlines, path))
    path.write_bytes(path.read_bytes()[:25])
    assert len(list(solve_frontier(problem, deadlines, path))) == 4
    assert len(load_frontier(path, problem)) == 4
