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


@pytest.mark.parametrize(("cls", "dp"), [(PointSolution, 1), (PointSolution3D, 2)])
def test_each_rank_gets_its_list_or_in_the_3d_variant_that_of_its_stage(
    plan: Path, cls: type[FrequencyScheduler], dp: int
) -> None:
    first, second = [("forward", 885), ("backward", 870)], [("forward", 1200), ("backward", 1110)]
    schedules = run(cls, plan, pp=2, dp=dp)
    assert [(s.rank, s.frequencies) for s in schedules] == list(enumerate([first] * dp + [second] * dp))


@pytest.mark.parametrize("name", PLANS)
def test_real_plans_run_on_a_3d_job(shared_data: Path, name: str) -> None:
    path = shared_data / "plans" / name
    schedules = run(PointSolution3D, path, pp=8, dp=2, tp=2)
    check_schedules(schedules, *make_job(8, 2, 2))
    assert schedules[31].frequencies == read_plan(path)[7]


@pytest.mark.parametrize(
    ("cls", "name", "degrees", "message"),
    [
        (PointSolution, "freqs_pipeline_00704.py", {"pp": 2, "dp": 2},
         r"for 2 ranks, but the job has 4 ranks in 2 stages; .*PointSolution3D"),
        (PointSolution3D, "freqs_pipeline_00704.py", {"pp": 3, "dp": 2},
         r"for 2 ranks, but the job has 3 ranks in 3 stages$"),
        (PointSolution, "none.py", {"pp": 2}, r"none\.py: cannot be read"),
        (PointSolution, "plan.csv", {"pp": 2}, r"plan\.csv: a plan file ends in \.py \(lowtime\) or \.yaml"),
        (PointSolution, "number.yaml", {"pp": 2}, r"must list the instructions one by one.* line 2"),
        (PointSolution, "typo.yaml", {"pp": 2}, r"typo\.yaml: line 2: unknown key 'stagse'; did you mean 'stages'\?"),
    ],
)  # fmt: skip
def test_a_plan_that_cannot_run_is_refused_when_the_scheduler_is_made(
    plan: Path, cls: type[FrequencyScheduler], name: str, degrees: dict[str, int], message: str
) -> None:
    (plan.parent / "number.yaml").write_text("# a number needs to know the instructions\nall: 1200\n")
    (plan.parent / "typo.yaml").write_text("\nstagse:\n  0: 3\n")
    with pytest.raises(PlanError, match=message) as caught:
        run(cls, plan.parent / name, **degrees)
    assert caught.value.line == (2 if name.endswith("yaml") else None)


@pytest.mark.parametrize("suffix", [".yaml", ".yml"])
def test_a_yaml_plan_of_lists_is_run_and_ranks_may_be_left_out(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"plan{suffix}"
    path.write_text("stages:\n  1:\n    - forward 1200, backward 1110 x2\n")
    for cls in (PointSolution, PointSolution3D):
        assert [(s.rank, len(s.frequencies)) for s in run(cls, path, pp=2, dp=2)] == [(2, 4), (3, 4)]
