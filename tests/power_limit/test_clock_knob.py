"""`knob="clock"`: the same optimizer sets a clock on all GPUs in place of a power limit."""

from __future__ import annotations

import json
import signal
import textwrap
from pathlib import Path
from typing import Any

import pytest
from power_limit_fakes import limits_set
from running import wait_for

from pfo_fs import power_limit as pl

pytestmark = pytest.mark.usefixtures("sim_dir")

OPTIONS: dict[str, Any] = {"knob": "clock", "clock_step": 300, "wait_steps": 0, "warmup_steps": 1, "profile_steps": 2}


def clocks_set(sim_dir: Path, name: str = "a") -> list[int]:
    """The clocks that a simulated GPU was given, in MHz, 0 for a reset; those before the first lock are left out."""
    lines = map(json.loads, (sim_dir / f"{name}.log").read_text().splitlines())
    found = [line["mhz"] for line in lines if line["action"] in ("lock", "reset")]
    return found[next((i for i, mhz in enumerate(found) if mhz), len(found)) :]


def train(monitor: pl.EnergyMonitor, optimizer: pl.GlobalPowerLimitOptimizer, steps: int) -> None:
    kernels = monitor.simulated_kernels(time_scale=50)
    assert kernels is not None
    for _ in range(steps):
        optimizer.on_step_begin()
        kernels.run("forward")
        kernels.run("backward")


@pytest.mark.parametrize("knob_of_monitor", ["clock", "power_limit"])
def test_clocks_are_measured_the_best_is_set_and_the_default_is_back_in_the_end(
    sim_dir: Path, tmp_path: Path, knob_of_monitor: Any
) -> None:
    path = tmp_path / "clocks.json"
    monitor = pl.EnergyMonitor(specs=["simulated:a"], knob=knob_of_monitor)
    with pl.GlobalPowerLimitOptimizer(
        monitor, pl.MaxSlowdownConstraint(1.5), profile_path=path, pl_step=1, **OPTIONS
    ) as optimizer:
        assert optimizer.power_limits == [1410, 1110, 810, 510]
        train(monitor, optimizer, 14)
        assert isinstance(optimizer.state, pl.Done)
        assert optimizer.state.unit == "MHz"
        assert optimizer.state.level == pl.MaxSlowdownConstraint(1.5).select(optimizer.measurements)
        assert optimizer.metrics()["pfo_fs/saving"] == 1 - (
            min(m.energy for m in optimizer.measurements if m.level == optimizer.state.level)
            / optimizer.measurements[0].energy
        )
    monitor.close()
    assert clocks_set(sim_dir)[:4] == [1410, 1110, 810, 510]
    assert clocks_set(sim_dir)[-1] == 0
    assert limits_set(sim_dir) == []
    assert [m["clock"] for m in json.loads(path.read_text())["measurements"]] == [1410, 1110, 810, 510]


def test_when_training_is_killed_the_clock_is_reset(sim_dir: Path, processes: Any) -> None:
    program = """
        import os, signal
        from pfo_fs.power_limit import EnergyMonitor, GlobalPowerLimitOptimizer
        monitor = EnergyMonitor(specs=["simulated:a"], knob="clock")
        optimizer = GlobalPowerLimitOptimizer(monitor, knob="clock", wait_steps=0)
        optimizer.on_step_begin()
        optimizer._gpus.set_level(900)
        optimizer._gpus.begin_window(900)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    trainer = processes.python("-c", textwrap.dedent(program))
    trainer.communicate()
    assert trainer.returncode == -signal.SIGKILL
    wait_for(lambda: clocks_set(sim_dir)[-2:] == [900, 0])


@pytest.mark.parametrize("fault", ["permission", "lock:2"])
def test_where_clocks_cannot_be_set_there_is_one_warning_and_training_goes_on(
    sim_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, fault: str
) -> None:
    monkeypatch.setenv("PFO_FS_SIM_FAULT", fault)
    monitor = pl.EnergyMonitor(specs=["simulated:a"], knob="clock")
    with pl.GlobalPowerLimitOptimizer(monitor, **OPTIONS) as optimizer:
        train(monitor, optimizer, 20)
        assert isinstance(optimizer.state, pl.Off)
    monitor.close()
    said = [record.message for record in caplog.records if not record.message.startswith("the clock process says")]
    assert said == [f"clock: {optimizer.state.reason}. Clocks are left alone, and training goes on"]
    if fault != "permission":
        assert clocks_set(sim_dir)[-1] == 0


# ---- metrics


def test_metrics_say_what_a_step_took(sim_dir: Path) -> None:
    monitor = pl.EnergyMonitor(specs=["simulated:a"], knob="clock")
    with pl.GlobalPowerLimitOptimizer(monitor, **OPTIONS) as optimizer:
        optimizer.state = pl.Done(900, "MHz")
        train(monitor, optimizer, 100)
        optimizer.metrics()
        found: dict[str, float] = {}

        def power_is_known() -> bool:
            train(monitor, optimizer, 100)
            found.update(optimizer.metrics())
            return abs(found.get("pfo_fs/clock_mhz", 0) - 900) < 1

        wait_for(power_is_known)
    monitor.close()
    assert set(found) == {f"pfo_fs/{key}" for key in ("step_time_s", "energy_j", "power_w", "clock_mhz")}
    assert all(type(value) is float for value in found.values())
    assert found["pfo_fs/energy_j"] == pytest.approx(found["pfo_fs/power_w"] * found["pfo_fs/step_time_s"])
    assert 80 < found["pfo_fs/power_w"] < 320
