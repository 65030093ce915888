"""Schedulers by name, and their arguments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pfo_fs.autotune.pareto_scheduler import ParetoScheduler
from pfo_fs.errors import ConfigError
from pfo_fs.scheduler import (
    FrequencyScheduler,
    Manual,
    PointSolution,
    PointSolution3D,
    ScheduleGenerator,
    check_scheduler_args,
    is_builtin,
    load_scheduler,
)

MODULE = """
from pfo_fs.scheduler import FrequencyScheduler, Manual

class Mine(Manual):
    pass

class Half(FrequencyScheduler):
    pass

class Other:
    pass

number = 7
"""


@pytest.fixture
def my_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "my_policies_of_test.py").write_text(MODULE)
    (tmp_path / "my_broken_of_test.py").write_text("import no_such_module_of_ours\n")
    (tmp_path / "my_exit_of_test.py").write_text("raise SystemExit(3)\n")
    (tmp_path / "my_syntax_of_test.py").write_text("def :\n")
    monkeypatch.syspath_prepend(tmp_path)
    return "my_policies_of_test"


def test_built_in_schedulers_have_short_names_and_others_are_found_by_module_and_class(my_module: str) -> None:
    for cls in (Manual, PointSolution, PointSolution3D):
        assert load_scheduler(cls.__name__) is cls
        assert is_builtin(cls.__name__)
    assert load_scheduler(f"{my_module}:Mine").__name__ == "Mine"
    assert not any(map(is_builtin, ("pfo_fs.scheduler:Manual", "os:system", "")))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("PointSolutoin", "did you mean PointSolution"),
        ("Paradox9", "Built in are Manual, PointSolution, PointSolution3D, InstructionProfiler, ParetoScheduler"),
        ("no_such_module_of_ours:Mine", "ModuleNotFoundError: No module named 'no_such_module_of_ours'"),
        ("my_broken_of_test:Mine", "No module named 'no_such_module_of_ours'"),
        ("my_exit_of_test:Mine", "SystemExit: 3"),
        ("my_syntax_of_test:Mine", "SyntaxError"),
        ("my_policies_of_test:Yours", "no attribute 'Yours'; its schedulers are Half, Manual, Mine"),
        ("my_policies_of_test:number", "number is a int, not a subclass"),
        ("my_policies_of_test:Other", "Other is a class, but not a subclass"),
        ("my_policies_of_test:Half", "Half does not define _run"),
        ("my_policies_of_test:", "expected package.module:Class"),
        (":Mine", "expected package.module:Class"),
        ("../evil:Mine", "expected package.module:Class"),
        ("", "is unknown"),
    ],
)
def test_a_name_that_leads_nowhere_says_which_step_failed(my_module: str, name: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_scheduler(name)
    assert message in str(caught.value)


class Choosy(FrequencyScheduler):
    def __init__(self, job_info: Any, rank_infos: Any, pfo_settings: Any, path: str, *, step: int = 3) -> None:
        super().__init__(job_info, rank_infos, pfo_settings)

    def _run(self) -> ScheduleGenerator:
        yield []


class Open(FrequencyScheduler):
    def __init__(self, *args: Any, path: str, **more: Any) -> None:
        super().__init__(*args)

    def _run(self) -> ScheduleGenerator:
        yield []


@pytest.mark.parametrize(
    ("cls", "args", "message"),
    [
        (PointSolution, {}, "missing solution_path. It takes PointSolution(solution_path: "),
        (PointSolution3D, {}, "missing solution_path. It takes PointSolution3D(solution_path: "),
        (PointSolution, {"solution_pth": "a"}, "unexpected solution_pth (did you mean solution_path?)"),
        (Manual, {"deadline": 3}, "unexpected deadline. It takes Manual()"),
        (Choosy, {"stp": 3}, "missing path; unexpected stp (did you mean step?)"),
        (Manual, {"job_info": 3}, "unexpected job_info"),
        (ParetoScheduler, {"tolerance": 0.003}, "unexpected tolerance"),
        (Open, {"anything": 1}, "missing path. It takes Open(*args: 'Any', path: 'str', **more: 'Any')"),
    ],
)
def test_arguments_that_do_not_fit_are_all_named_with_the_signature(
    cls: type[FrequencyScheduler], args: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        check_scheduler_args(cls, args)
    assert message in str(caught.value)
