"""`pfo-fs doctor` as a process, on simulated nodes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
from commands import Done, pfo_fs
from hypothesis import given
from hypothesis import strategies as st
from running import HANGS_AFTER_S, Processes, wait_for

from pfo_fs.device.clock_client import ClockProcess
from pfo_fs.device.simulated.gpu import SimulatedGpu
from pfo_fs.device.simulated.physics import node_physics
from pfo_fs.doctor import switching
from pfo_fs.doctor.checks import check_clock_process, check_helper
from pfo_fs.doctor.switching import order_of_changes
from pfo_fs.switching_file import read_switching


def doctor(*arguments: object, node: str = "none", **more: str) -> Done:
    environment = {"PFO_FS_GPU": "simulated", "PFO_FS_SIM_NODE": node, **more}
    return pfo_fs("doctor", *arguments, columns=100, **environment)


def actions(sim_dir: Path) -> dict[str, list[str]]:
    """For each simulated GPU, what was done to its clock."""
    logs = sim_dir.glob("*.log")
    return {log.stem: [json.loads(line)["action"] for line in log.read_text().splitlines()] for log in logs}


# ---- measuring


@pytest.mark.slow
def test_a_node_is_measured_its_clocks_are_reset_and_the_file_is_what_planners_read(
    sim_dir: Path, tmp_path: Path
) -> None:
    """How exactly depends on how busy this machine is, so only what cannot be wrong is compared."""
    output, node = tmp_path / "switching.json", "H100 node"
    done = doctor("--switching", "--yes", "--gpus", "3", "-o", str(output), "--json", node=node)
    assert done.returncode == 0, done.stderr
    measured, physics = read_switching(output), node_physics(node)
    assert measured.gpus == 3
    assert measured.call_s.median > 0.9 * physics.call_s
    assert measured.latency_s
    assert all(0 <= latency_s < 0.3 for latency_s in measured.latency_s.values())
    assert {log[-1] for log in actions(sim_dir).values()} == {"reset"}


@given(count=st.integers(2, 40), most=st.integers(2, 12), rounds=st.integers(1, 4))
def test_each_clock_is_set_once_per_round_and_changes_go_up_and_down_in_turn(
    count: int, most: int, rounds: int
) -> None:
    clocks_mhz = list(range(200, 200 + 15 * count, 15))
    order = order_of_changes(clocks_mhz, most, rounds)
    assert set(Counter(order).values()) == {rounds}
    assert {clocks_mhz[0], clocks_mhz[-1]} <= set(order)
    assert len(set(order)) == min(count, most) // 2 * 2
    assert all(one != other for one, other in pairwise(order))


def test_where_no_work_can_run_the_calls_are_measured_and_the_file_says_why_latencies_are_not(
    sim_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(spec: str) -> None:
        raise switching.NoWork("torch cannot be imported")

    monkeypatch.setattr(switching, "_work_on", refuse)
    with switching.held_gpus(["simulated:a", "simulated:b"]) as gpus:
        found = switching.measure_switching(gpus)
    assert (found.not_measured, found.latency_s) == ("torch cannot be imported", {})
    assert found.call_s.median > 0
    assert {log[-1] for log in actions(sim_dir).values()} == {"reset"}


def fake_torch(*, cuda: bool) -> SimpleNamespace:
    """A torch with one GPU."""
    of_gpu = SimpleNamespace(uuid="bbbb")
    calls = {"is_available": lambda: cuda, "device_count": lambda: 1, "get_device_properties": lambda index: of_gpu}
    return SimpleNamespace(cuda=SimpleNamespace(**calls))


@pytest.mark.parametrize(
    ("torch", "says"),
    [
        (None, "pip install torch"),
        (fake_torch(cuda=False), "no CUDA device"),
        (fake_torch(cuda=True), "torch does not see the GPU nvml:GPU-aaaa"),
    ],
)
def test_a_gpu_that_torch_cannot_use_gets_no_work(
    monkeypatch: pytest.MonkeyPatch, torch: SimpleNamespace | None, says: str
) -> None:
    monkeypatch.setitem(sys.modules, "torch", torch)
    with pytest.raises(switching.NoWork, match=says), switching._work_on("nvml:GPU-aaaa"):
        pass


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_clocks_are_reset_when_the_measurement_is_ended(
    sim_dir: Path, tmp_path: Path, processes: Processes, number: int
) -> None:
    output = tmp_path / "switching.json"
    process = subprocess.Popen(
        [sys.executable, "-m", "pfo_fs", "doctor", "--switching", "--yes", "--gpus", "2", "-o", str(output)],
        env={**os.environ, "PFO_FS_GPU": "simulated", "PFO_FS_SIM_NODE": "A100 node"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        # A shell that starts the tests in the background has them ignore SIGINT.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    processes.started.append(process)
    wait_for(lambda: sum("lock" in log for log in actions(sim_dir).values()) == 2, "clocks of both GPUs")
    process.send_signal(number)
    assert process.wait(HANGS_AFTER_S) == (130 if number == signal.SIGINT else -number)
    wait_for(lambda: {log[-1] for log in actions(sim_dir).values()} == {"reset"}, "the reset of all clocks")
    assert not output.exists()


def test_while_another_process_sets_clocks_the_measurement_is_refused(sim_dir: Path, tmp_path: Path) -> None:
    clocks = ClockProcess("simulated:training")
    try:
        assert clocks.message == ""
        done = doctor("--switching", "--yes", "-o", str(tmp_path / "switching.json"))
    finally:
        clocks.close()
    assert done.returncode == 1
    assert "1 other process(es) of pfo-fs set clocks on this node" in done.said
    assert set(actions(sim_dir)) == {"training"}


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({}, "--yes"),
        ({"PFO_FS_SIM_FAULT": "permission"}, "may not lock GPU clocks"),
        ({"PFO_FS_DRY_RUN": "1"}, "PFO_FS_DRY_RUN is set"),
    ],
    ids=["nobody has agreed", "no permission", "a dry run"],
)
def test_where_nothing_can_be_measured_no_clock_is_set_and_the_error_says_why(
    sim_dir: Path, tmp_path: Path, more: dict[str, str], says: str
) -> None:
    done = doctor("--switching", *["--yes"] * bool(more), "-o", tmp_path / "switching.json", **more)
    assert (done.returncode, says in done.said) == (1, True), done.said
    assert not any("lock" in log for log in actions(sim_dir).values())
    assert not (tmp_path / "switching.json").exists()


# ---- checks


def test_the_checks_set_no_clock_and_say_what_works(sim_dir: Path) -> None:
    done = doctor("--gpus", "2", "--json")
    assert (done.returncode, done.answer["ok"]) == (0, True)
    found = {check["name"]: check for check in done.answer["checks"]}
    assert found["GPUs"]["found"] == "2: simulated A100"
    assert found["clocks"]["found"] == "set by: simulated"
    assert found["costs of clock changes"]["hint"]
    assert not any(actions(sim_dir).values())


def test_what_does_not_work_is_exit_code_1_with_a_hint(sim_dir: Path, tmp_path: Path) -> None:
    done = doctor(PFO_FS_GPU="none")
    assert done.returncode == 1
    assert "PFO_FS_GPU=none asks for no GPU" in done.stdout
    broken = tmp_path / "broken.json"
    broken.write_text("{}")
    done = doctor("--json", PFO_FS_SWITCHING_FILE=str(broken))
    assert done.returncode == 1
    assert "call_s" in done.stdout


# ---- what `pfo-fs doctor` says about the processes beside training


def test_processes_that_start_and_end_as_they_should_are_said_to(sim_dir: Path) -> None:
    assert check_clock_process("simulated:a").ok
    assert check_helper().ok


def test_trying_the_clock_process_leaves_the_gpu_as_it_was(sim_dir: Path) -> None:
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
