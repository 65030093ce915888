"""The arguments of `PFOFileOptimizer` that `job_request.py` checks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pfo_fs import PFOFileOptimizer
from pfo_fs.device.gpu.spec import NAMES
from pfo_fs.errors import ConfigError
from pfo_fs.training.job_request import JobRequest, checked_settings, text_of


def request(**given: Any) -> JobRequest:
    settings = checked_settings("daemon", None, None, None)
    fixed = {"job_metadata": None, "device": None, "wait_for_schedule_s": 0.0}
    return JobRequest(**{"settings": settings, "own_scheduler": False, "coordination": "auto", **fixed, **given})


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"coordination": "wrong"}, "coordination is 'wrong'; it can be auto, daemon, local"),
        ({"switching": "late"}, "switching is 'late'; it can be auto, device, launch"),
        ({"clock_backend": "magic"}, rf"PFO_FS_CLOCK_BACKEND\) is 'magic'.*{', '.join(NAMES)}"),
        ({"max_clock_calls_per_s": 0.0}, "max_clock_calls_per_s is 0.0"),
        ({"max_clock_calls_per_s": float("nan")}, "max_clock_calls_per_s is nan"),
    ],
)
def test_a_value_that_cannot_be_is_an_error_that_says_what_can(given: dict[str, Any], reason: str) -> None:
    request(shared_dir="unused", max_clock_calls_per_s=0.5)
    with pytest.raises(ConfigError, match=reason):
        request(shared_dir="unused", **given)


def test_the_way_to_set_clocks_is_the_argument_then_the_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PFO_FS_CLOCK_BACKEND", "Zeusd")
    with pytest.raises(ConfigError, match="'Zeusd'"):
        PFOFileOptimizer(tmp_path, rank=0, world_size=1, pp_degree=1, strict=True)
    with pytest.raises(ConfigError, match="'magic'"):
        PFOFileOptimizer(tmp_path, rank=0, world_size=1, pp_degree=1, strict=True, clock_backend="magic")


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
