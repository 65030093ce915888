"""Fixed plans, from lowtime's files and from YAML."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from scheduler_jobs import PLANS, make_job

from pfo_fs.errors import PlanError
from pfo_fs.scheduler import FrequencyScheduler, PointSolution, PointSolution3D, check_schedules, read_plan
from pfo_fs.settings import PFOSettings

TWO_STAGES = (
    "[\n[('forward', 885), ('backward', 870)],\n[('forward', 1200), ('backward', 1110)],\n]\n# made by lowtime\n"
)


def run(cls: type[FrequencyScheduler], path: Path, **degrees: int) -> Any:
    job, infos = make_job(**degrees)
    return cls(job, infos, PFOSettings(), solution_path=str(path)).next_schedule()  # type: ignore[call-arg]


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    path = tmp_path / "freqs_pipeline_00704.py"
    path.write_text(TWO_STAGES)
    return path


def test_each_rank_gets_its_list(plan: Path) -> None:
    schedules = run(PointSolution, plan, pp=2)
    assert [(s.rank, s.frequencies) for s in schedules] == [
        (0, [("forward", 885), ("backward", 870)]),
        (1, [("forward", 1200), ("backward", 1110)]),
    ]


def test_the_3d_variant_gives_each_rank_the_list_of_its_stage(plan: Path) -> None:
    schedules = run(PointSolution3D, plan, pp=2, dp=2)
    assert [(s.rank, s.frequencies[0][1]) for s in schedules] == [(0, 885), (1, 885), (2, 1200), (3, 1200)]


@pytest.mark.parametrize("name", PLANS)
def test_real_plans_run_on_a_3d_job(shared_data: Path, name: str) -> None:
    path = shared_data / "plans" / name
    schedules = run(PointSolution3D, path, pp=8, dp=2, tp=2)
    check_schedules(schedules, *make_job(8, 2, 2))
    assert schedules[31].frequencies == read_plan(path)[7]


def test_a_plan_per_stage_for_a_job_with_more_ranks_points_to_the_3d_variant(plan: Path) -> None:
    with pytest.raises(PlanError, match=r"for 2 ranks, but the job has 4 ranks in 2 stages; .*PointSolution3D"):
        run(PointSolution, plan, pp=2, dp=2)


def test_a_plan_for_another_number_of_stages_names_both(plan: Path) -> None:
    with pytest.raises(PlanError, match=r"for 2 ranks, but the job has 3 ranks in 3 stages$"):
        run(PointSolution3D, plan, pp=3, dp=2)


def test_a_plan_file_that_is_not_there_is_said_when_the_scheduler_is_made(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"none\.py: cannot be read"):
        run(PointSolution, tmp_path / "none.py", pp=2)


def test_another_kind_of_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"plan\.csv: a plan file ends in \.py \(lowtime\) or \.yaml"):
        run(PointSolution, tmp_path / "plan.csv", pp=2)


@pytest.mark.parametrize("suffix", [".yaml", ".yml"])
def test_a_yaml_plan_of_lists_is_run(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"plan{suffix}"
    path.write_text("stages:\n  0: [forward 885 x2]\n  1:\n    - forward 1200, backward 1110 x2\n")
    schedules = run(PointSolution, path, pp=2, dp=2)
    assert [len(schedule.frequencies) for schedule in schedules] == [2, 2, 4, 4]


def test_a_yaml_plan_runs_under_the_3d_variant(tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text("stages:\n  1: [forward 885 x2]\n")
    assert [schedule.rank for schedule in run(PointSolution3D, path, pp=2, dp=2)] == [2, 3]


def test_a_number_in_a_yaml_plan_must_become_a_list(tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text("# a number needs to know the instructions\nall: 1200\n")
    with pytest.raises(PlanError, match=r"must list the instructions one by one.* line 2") as caught:
        run(PointSolution, path, pp=2)
    assert caught.value.line == 2


def test_problems_of_a_yaml_plan_name_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text("\nstagse:\n  0: 3\n")
    with pytest.raises(PlanError, match=r"plan\.yaml: line 2: unknown key 'stagse'; did you mean 'stages'\?"):
        run(PointSolution, path, pp=2)


def test_a_fixed_plan_is_done_after_its_first_results(plan: Path) -> None:
    job, infos = make_job(pp=2)
    scheduler = PointSolution(job, infos, PFOSettings(), plan)
    before = scheduler.next_schedule()
    scheduler.observe([])
    assert scheduler.done
    assert scheduler.next_schedule() == before
