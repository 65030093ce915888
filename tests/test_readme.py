"""What the README shows works as it stands there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from jobs import one_f_one_b, rank_infos

from pfo_fs.models import JobInfo, ProfilingResult
from pfo_fs.schedule_yaml import parse_schedule_yaml
from pfo_fs.settings import PFOSettings

README = (Path(__file__).parents[1] / "README.md").read_text()


def block(language: str, having: str) -> str:
    return next(text for text in re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL) if having in text)


def test_the_policy_of_ones_own_goes_down_step_by_step() -> None:
    names: dict[str, object] = {}
    exec(block("python", "class Descending"), names)
    job = JobInfo(pp_degree=4, dp_degree=1, tp_degree=1, world_size=4)
    scheduler = names["Descending"](job, rank_infos(4), PFOSettings())  # type: ignore[operator]
    results = [ProfilingResult(rank=rank, iter_time=[1.0], iter_energy=[1.0]) for rank in range(4)]
    for mhz in (1410, 1305, 1200):
        for schedule in scheduler.next_schedule():
            assert schedule.frequencies == one_f_one_b(schedule.rank, 4, 12, mhz)
        scheduler.observe(results)
    assert scheduler.done


def test_the_yaml_is_well_formed() -> None:
    document = parse_schedule_yaml(block("yaml", "stages:"))
    assert document.for_all is not None


def test_every_setting_of_the_table_exists() -> None:
    known = {f"PFO_FS_{name.upper()}" for name in PFOSettings.model_fields}
    known |= {
        "PFO_FS_RUN_DIR",
        "PFO_FS_CLOCK_BACKEND",
        "PFO_FS_GPU",
        "PFO_FS_DRY_RUN",
        "PFO_FS_MIN_DWELL_MS",
        "PFO_FS_SWITCHING_FILE",
        "PFO_FS_MAX_CLOCK_CALLS_PER_S",
        "PFO_FS_SIM_NODE",
        "PFO_FS_SIM_MODEL",
        "PFO_FS_SIM_TIME_SCALE",
    }
    named = set(re.findall(r"`(PFO_FS_[A-Z_]+)`", README))
    assert named
    assert named <= known


def test_the_planner_in_python_works_as_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    example = Path(__file__).parents[1] / "examples" / "make_profile.py"
    subprocess.run([sys.executable, example, tmp_path / "profile.csv"], check=True)
    monkeypatch.chdir(tmp_path)
    exec(block("python", "from pfo_fs.planner"), {})
    iteration_time_s, energy_j, lower_bound_j, gap = map(float, capsys.readouterr().out.split())
    assert iteration_time_s > 1
    assert lower_bound_j <= energy_j
    assert gap < 0.01


def test_every_option_of_the_plan_command_that_is_shown_exists() -> None:
    shown = set(re.findall(r"--[a-z0-9-]+", " ".join(re.findall(r"pfo-fs plan .*", README))))
    known = subprocess.run(
        [sys.executable, "-m", "pfo_fs", "plan", "--help"],
        capture_output=True, text=True, check=True, env={"COLUMNS": "200", "PATH": "/usr/bin:/bin"},
    ).stdout  # fmt: skip
    assert {"--slowdown", "--frontier"} <= shown
    assert all(option in known for option in shown)
