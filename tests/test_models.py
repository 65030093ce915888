"""Models keep Zeus's names and shapes; ids are safe as folder names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from pfo_fs.errors import ConfigError, PlanError
from pfo_fs.models import (
    FrequencySchedule,
    JobInfo,
    ProfilingResult,
    RankInfo,
    is_safe_job_id,
)
from pfo_fs.settings import load_settings
from pfo_fs.store import load_prof, load_ranks, load_sched, save_prof, save_ranks, save_sched


def job(**fields: object) -> JobInfo:
    return JobInfo.model_validate({"pp_degree": 4, "dp_degree": 2, "tp_degree": 1, "world_size": 8, **fields})


def test_a_job_id_says_when_how_wide_and_by_which_scheduler() -> None:
    info = job(job_metadata="gpt3")
    info.set_job_id("PointSolution")
    assert re.fullmatch(r"\d{4}-\d\d-\d\d-\d\d-\d\d-\d\d\+dp2\+pp4\+tp1\+PointSolution\+gpt3", info.job_id)


@given(st.text(max_size=300), st.text(max_size=100))
def test_a_job_id_is_a_plain_folder_name_whatever_the_metadata_holds(metadata: str, scheduler: str) -> None:
    info = job(job_metadata=metadata)
    info.set_job_id(scheduler)
    assert is_safe_job_id(info.job_id)
    assert "/" not in info.job_id
    assert "\0" not in info.job_id
    assert len(info.job_id.encode()) <= 255


@pytest.mark.parametrize("job_id", ["../x", "a/b", ".hidden", "", "a\0b", "x" * 256, "a b"])
def test_ids_that_lead_elsewhere_are_not_job_ids(job_id: str) -> None:
    assert not is_safe_job_id(job_id)
    if job_id:
        with pytest.raises(ValidationError):
            job(job_id=job_id)


def test_a_world_size_that_is_not_the_product_is_refused_with_the_numbers() -> None:
    with pytest.raises(ValidationError, match="world_size 7 is not pp_degree 4 x dp_degree 2 x tp_degree 1 = 8"):
        job(world_size=7)


@pytest.mark.parametrize("mhz", [-1, 60_001])
def test_a_clock_that_no_gpu_has_is_refused(mhz: int) -> None:
    with pytest.raises(ValidationError, match="is not a clock"):
        FrequencySchedule(rank=0, frequencies=[("forward", mhz)])


def test_stages_must_be_as_many_as_instructions() -> None:
    with pytest.raises(ValidationError, match="2 stages for 1 instructions"):
        FrequencySchedule(rank=0, frequencies=[("forward", 0)], stages=[0, 1])


def test_dumps_are_read_as_they_were_written(tmp_path: Path) -> None:
    results = [ProfilingResult(rank=0, iter_time=[1.0], iter_energy=[2.0], time_breakdown={"forward": [[0.5]]})]
    schedules = [FrequencySchedule(rank=0, frequencies=[("forward", 1410)])]
    ranks = [RankInfo(rank=0, dp_rank=0, pp_rank=0, tp_rank=0, available_frequencies=[1410])]
    save_prof(results, tmp_path, 3)
    save_sched(schedules, tmp_path, 3)
    save_ranks(ranks, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["3.prof.json", "3.sched.json", "ranks.json"]
    assert (load_prof(tmp_path, 3), load_sched(tmp_path, 3), load_ranks(tmp_path)) == (results, schedules, ranks)


def test_a_dump_of_zeus_is_read(tmp_path: Path) -> None:
    (tmp_path / "0.sched.json").write_text('[{"rank": 0, "frequencies": [["forward", 1410], ["backward", 1200]]}]')
    assert load_sched(tmp_path, 0)[0].frequencies == [("forward", 1410), ("backward", 1200)]


def test_a_missing_dump_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="is not there"):
        load_prof(tmp_path, 0)


def test_settings_come_from_the_environment_and_arguments_win(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PFO_FS_SCHEDULER", "PointSolution")
    monkeypatch.setenv("PFO_FS_SCHEDULER_ARGS", '{"solution_path": "x.py"}')
    monkeypatch.setenv("PFO_FS_PROFILE_STEPS", "7")
    settings = load_settings(profile_steps=3)
    assert (settings.scheduler, settings.profile_steps) == ("PointSolution", 3)
    assert settings.scheduler_args == {"solution_path": "x.py"}


@pytest.mark.parametrize(
    ("name", "value"),
    [("PROFILE_STEPS", "0"), ("LOG_LEVEL", "loud"), ("WATCH", "sometimes"), ("SCHEDULER_ARGS", "no json")],
)
def test_a_wrong_setting_is_an_error_that_names_it(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(f"PFO_FS_{name}", value)
    with pytest.raises(ConfigError, match=re.compile(name, re.IGNORECASE)):
        load_settings()
