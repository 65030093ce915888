"""`pfo-fs doctor` as a process, on simulated nodes."""

import sys
from pathlib import Path

import pytest
from commands import Done, pfo_fs

from pfo_fs.device.simulated.gpu import SimulatedGpu
from pfo_fs.doctor.checks import check_clock_process, check_helper


def doctor(*arguments: object, node: str = "none", **more: str) -> Done:
    environment = {"PFO_FS_GPU": "simulated", "PFO_FS_SIM_NODE": node, **more}
    return pfo_fs("doctor", *arguments, columns=100, **environment)


# ---- checks


def test_the_checks_set_no_clock_and_say_what_works(sim_dir: Path) -> None:
    done = doctor("--gpus", "2", "--json")
    assert (done.returncode, done.answer["ok"]) == (0, True)
    found = {check["name"]: check for check in done.answer["checks"]}
    assert found["GPUs"]["found"] == "2: simulated A100"
    assert found["clocks"]["found"] == "set by: simulated"
    assert not any(log.read_text() for log in sim_dir.glob("*.log"))


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"PFO_FS_GPU": "none"}, "PFO_FS_GPU=none asks for no GPU"),
        ({"PFO_FS_GPU": "foo"}, "PFO_FS_GPU='foo': use simulated"),
        ({"PFO_FS_CLOCK_BACKEND": "zeus"}, "PFO_FS_CLOCK_BACKEND: 'zeus' is unknown; it can be auto, nvml, zeusd"),
        ({"PFO_FS_GPU": "none", "PFO_FS_CLOCK_BACKEND": "zeus"}, "PFO_FS_CLOCK_BACKEND: 'zeus' is unknown"),
    ],
)
def test_what_does_not_work_is_exit_code_1_with_a_hint(sim_dir: Path, variables: dict[str, str], said: str) -> None:
    done = doctor("--json", **variables)
    assert done.returncode == 1
    assert any(said in check["found"] for check in done.answer["checks"])


# ---- what `pfo-fs doctor` says about the processes beside training


def test_processes_that_start_and_end_as_they_should_are_said_to_and_leave_the_gpu_as_it_was(sim_dir: Path) -> None:
    assert check_helper().ok
    SimulatedGpu("a").lock_clock_mhz(900)
    assert check_clock_process("simulated:a").ok
    assert SimulatedGpu("a").shows_clock(900) is not False
    assert (sim_dir / "a.log").read_text().count("reset") == 0


@pytest.mark.parametrize("module", ["msgspec", "pydantic"])
def test_a_package_that_cannot_be_imported_there_is_named(
    sim_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str
) -> None:
    (tmp_path / f"{module}.py").write_text(f"raise ImportError('{module} is for another Python')")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    check = check_helper()
    assert check.ok is False
    assert f"its last words: ImportError: {module} is for another Python" in check.found


def test_without_an_interpreter_both_say_why(sim_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    checks = [check_clock_process("none"), check_helper()]
    assert [check.ok for check in checks] == [False, False]
    assert all("frozen" in check.found for check in checks)
