"""Models keep Zeus's names and shapes; ids are safe as folder names."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from pfo_fs.errors import ConfigError, PlanError
from pfo_fs.models import FrequencySchedule, JobInfo, ProfilingResult, is_safe_job_id
from pfo_fs.settings import PFOSettings, load_settings
from pfo_fs.store import load_dump, save_dump


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


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: job(world_size=7), "world_size 7 is not pp_degree 4 x dp_degree 2 x tp_degree 1 = 8"),
        (lambda: FrequencySchedule(rank=0, frequencies=[("forward", -1)]), "is not a clock"),
        (lambda: FrequencySchedule(rank=0, frequencies=[("forward", 60_001)]), "is not a clock"),
        (lambda: FrequencySchedule(rank=0, frequencies=[("f", 0)], stages=[0, 1]), "2 stages for 1 instructions"),
    ],
)
def test_values_that_contradict_each_other_or_no_gpu_has_are_refused(make: Callable[[], object], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        make()


def test_dumps_are_read_as_they_were_written_also_by_zeus(tmp_path: Path) -> None:
    results = [ProfilingResult(rank=0, iter_time=[1.0], iter_energy=[2.0], time_breakdown={"forward": [[0.5]]})]
    schedules = [FrequencySchedule(rank=0, frequencies=[("forward", 1410)])]
    save_dump(ProfilingResult, results, tmp_path, 3)
    save_dump(FrequencySchedule, schedules, tmp_path, 3)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["3.prof.json", "3.sched.json"]
    assert (load_dump(ProfilingResult, tmp_path, 3), load_dump(FrequencySchedule, tmp_path, 3)) == (results, schedules)
    (tmp_path / "0.sched.json").write_text('[{"rank": 0, "frequencies": [["forward", 1410]]}]')
    assert load_dump(FrequencySchedule, tmp_path, 0) == schedules
    with pytest.raises(PlanError, match="is not there"):
        load_dump(ProfilingResult, tmp_path, 0)


def test_settings_come_from_the_environment_and_arguments_win(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PFO_FS_SCHEDULER", "PointSolution")
    monkeypatch.setenv("PFO_FS_SCHEDULER_ARGS", '{"solution_path": "x.py"}')
    monkeypatch.setenv("PFO_FS_PROFILE_STEPS", "7")
    settings = load_settings(profile_steps=3)
    assert (settings.scheduler, settings.profile_steps) == ("PointSolution", 3)
    assert settings.scheduler_args == {"solution_path": "x.py"}


@pytest.mark.parametrize("name", PFOSettings.model_fields)
def test_a_setting_whose_variable_is_empty_has_its_default(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    default = PFOSettings.model_fields[name].default
    monkeypatch.setenv(f"PFO_FS_{name.upper()}", "")
    assert getattr(load_settings(), name) == getattr(load_settings(of_job=True), name) == default


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("SCHEDULER_ARGS", "{slowdown:", "must be a JSON object such as"),
        ("SCHEDULER_ARGS", "[1.05]", "must be a JSON object"),
        ("LOG_LEVEL", "loud", "'loud' is not a log level"),
        ("DUMP_DATA", "perhaps", "must be true or false, not 'perhaps'"),
        ("MAX_JOB_IDLE_TIME", "-1", "must be greater than 0, not '-1'"),
        ("POLL_INTERVAL", "1e400", "must be at most 60, not '1e400'"),
        ("WATCH", "sometimes", "must be 'auto', 'poll' or 'events', not 'sometimes'"),
        ("PROFILE_STEPS", "0", "must be at least 1, not '0'"),
        ("PROFILE_STEPS", "2.5", "must be a whole number, not '2.5'"),
        ("PROFILE_SECONDS", "4s", "must be a number, not '4s'"),
        ("LEASE_TIMEOUT", "nan", "must be at most 600, not 'nan'"),
        ("STRAGGLER_TIMEOUT", "4000", "must be at most 3600, not '4000'"),
    ],
)
def test_a_wrong_setting_is_named(monkeypatch: pytest.MonkeyPatch, name: str, value: str, words: str) -> None:
    monkeypatch.setenv(f"PFO_FS_{name}", value)
    with pytest.raises(ConfigError, match=f"^PFO_FS_{name}:? .*{re.escape(words)}"):
        load_settings()


def test_a_wrong_setting_of_the_daemon_does_not_concern_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LOG_LEVEL", "MAX_JOB_IDLE_TIME", "WATCH", "LEASE_TIMEOUT"):
        monkeypatch.setenv(f"PFO_FS_{name}", "wrong")
    assert load_settings(of_job=True).log_level == "INFO"


def test_the_error_of_a_wrong_argument_does_not_blame_a_variable() -> None:
    with pytest.raises(ConfigError, match=r"^profile_steps must be at least 1, not 0"):
        load_settings(profile_steps=0)
