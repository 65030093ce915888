"""The arguments of `PFOFileOptimizer` that `job_request.py` checks."""

from __future__ import annotations

from pathlib import Path

import pytest

from pfo_fs.device.clock_backends.choice import NAMES
from pfo_fs.errors import ConfigError
from pfo_fs.training.job_request import checked_clock_backend, checked_clock_calls, checked_settings, text_of


def test_the_way_to_set_clocks_is_the_argument_then_the_variable_then_auto(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PFO_FS_CLOCK_BACKEND", raising=False)
    assert checked_clock_backend(None) == "auto"
    monkeypatch.setenv("PFO_FS_CLOCK_BACKEND", "sudo")
    assert checked_clock_backend(None) == "sudo"
    assert checked_clock_backend("slurm-step") == "slurm-step"


def test_a_way_that_does_not_exist_is_an_error_that_lists_those_that_do(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=f"'magic'.*{', '.join(NAMES)}"):
        checked_clock_backend("magic")
    monkeypatch.setenv("PFO_FS_CLOCK_BACKEND", "Zeusd")
    with pytest.raises(ConfigError, match=r"PFO_FS_CLOCK_BACKEND.*'Zeusd'"):
        checked_clock_backend(None)


@pytest.mark.parametrize("calls_per_s", [0.0, -1.0, float("nan")])
def test_a_limit_of_clock_calls_must_be_above_zero(calls_per_s: float) -> None:
    checked_clock_calls(None)
    checked_clock_calls(0.5)
    with pytest.raises(ConfigError, match="max_clock_calls_per_s"):
        checked_clock_calls(calls_per_s)


def test_a_plan_in_the_working_directory_is_named_by_its_whole_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "plan.py").write_text("[[('forward', 1200), ('backward', 1305)]]\n")
    monkeypatch.chdir(tmp_path)
    for plan in ("plan.py", Path("plan.py"), str(tmp_path / "plan.py")):
        settings = checked_settings("local", "PointSolution3D", {"solution_path": plan}, None)
        assert settings.scheduler_args == {"solution_path": str(tmp_path / "plan.py")}


@pytest.mark.parametrize("given", ["cab\udce9", b"cab\xe9", "\ud800x", 5], ids=repr)
def test_any_text_can_be_written_as_utf_8(given: object) -> None:
    assert (text_of(given) or "").encode().decode() == text_of(given)
