"""Power limits from the trainer to the GPU, through real clock processes, and back again whatever happens."""

import json
import math
import os
import secrets
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from itertools import dropwhile
from operator import not_
from pathlib import Path
from typing import Any

import pytest
from power_limit_fakes import limits_set
from running import HANGS_AFTER_S, wait_for
from torchrun import clocks_mhz

from pfo_fs import power_limit as pl
from pfo_fs.device.clocks.power_limits import PowerLimits
from pfo_fs.device.clocks.undo import GpuUndo
from pfo_fs.device.simulated.gpu import SimulatedGpu
from pfo_fs.device.simulated.physics import A40, A100, MODELS
from pfo_fs.errors import ConfigError, DeviceError
from pfo_fs.helper.client import HelperClient
from pfo_fs.power_limit import Done, EnergyMonitor, GlobalPowerLimitOptimizer, Off, Time
from pfo_fs.power_limit.gpus import KnobGpu, read_energies

pytestmark = pytest.mark.usefixtures("sim_dir")
Open = Callable[..., KnobGpu]


@pytest.fixture
def open_limited() -> Iterator[Open]:
    opened: list[KnobGpu] = []

    def one(spec: str = "simulated:a") -> KnobGpu:
        opened.append(KnobGpu(spec))
        if spec == "simulated:a":
            opened[-1].bounds()
        return opened[-1]

    yield one
    for gpu in opened:
        gpu.close()


def at_200_w(open_limited: Open, sim_dir: Path) -> KnobGpu:
    gpu = open_limited()
    gpu.set_level(200)
    wait_for(lambda: limits_set(sim_dir) == [200])
    return gpu


@pytest.mark.parametrize("name", MODELS)
def test_under_a_limit_an_instruction_draws_that_much_or_less_and_never_gets_faster(name: str) -> None:
    model = MODELS[name]
    lowest, highest = map(int, model.power_limits_w)
    for instruction in ("forward", "backward", "backward_weight"):
        free = model.coefficients(instruction)
        top_mhz, low_mhz = model.clocks_mhz[0], model.clocks_mhz[-1]
        assert free.within(highest, low_mhz) == free
        times_s = []
        for level in range(highest, lowest - 1, -5):
            limited = free.within(level, low_mhz)
            times_s.append(limited.time_s(top_mhz))
            assert limited.power_w(top_mhz) <= max(level, free.power_w(low_mhz)) + 0.01
            assert limited.time_s(low_mhz) == pytest.approx(free.time_s(low_mhz), rel=1e-4)
        assert times_s == sorted(times_s)
    assert A40.coefficients("forward").within(200, 210).power_w(1740) == pytest.approx(200, abs=0.1)


def test_limits_are_set_and_restored_at_the_close_and_clocks_left_alone(open_limited: Open, sim_dir: Path) -> None:
    SimulatedGpu("a").set_power_limit_w(450)  # the site's own, say
    SimulatedGpu("a").lock_clock_mhz(900)
    (sim_dir / "a.log").unlink()
    gpu = open_limited()
    assert gpu.bounds()[:2] == (100, 500)
    gpu.set_level(300)
    gpu.set_level(200)
    gpu.settle(time.monotonic() + HANGS_AFTER_S)  # at its end, a process that has requests to read may repeat one
    gpu.close()
    assert limits_set(sim_dir) == [300, 200, 450]
    assert "reset" not in (sim_dir / "a.log").read_text()


def clocks_set(sim_dir: Path) -> list[int]:
    """The clocks that simulated GPU `a` was given, in MHz, 0 for a reset; those before the first lock are left out."""
    return list(dropwhile(not_, clocks_mhz(sim_dir / "a.log")))


@pytest.mark.parametrize(
    ("in_force", "then"),
    [
        (200, [500, 500, 300, 500]),  # restored, tried, set, restored
        (250, [250, 500, 500, 300, 500]),  # as before a call of the driver that was noted already
        (350, [350, 350, 300, 350]),  # another process has set it since
    ],
)
def test_a_left_limit_is_not_the_sites_own(open_limited: Open, sim_dir: Path, in_force: int, then: list[int]) -> None:
    gpu = open_limited()
    for level in (250, 200):
        gpu.set_level(level)
    wait_for(lambda: limits_set(sim_dir)[-1:] == [200])
    gpu.clocks._lost = True  # as when a whole job is killed: nobody is left who would notice
    gpu.clocks._process.kill()
    gpu.clocks._process.wait(HANGS_AFTER_S)
    if in_force != 200:
        SimulatedGpu("a").set_power_limit_w(in_force)
    later = open_limited()
    assert not list(sim_dir.glob("power-limit-*")), "the note has done its duty"
    later.set_level(300)
    later.close()
    assert limits_set(sim_dir) == [250, 200, *then]
    assert not list(sim_dir.glob("power-limit-*"))


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"before": "x", "value": 500}', '{"before": 9e9, "value": 500}'])
def test_a_note_that_is_not_valid_is_not_used(open_limited: Open, sim_dir: Path, text: str) -> None:
    (sim_dir / "power-limit-SIM-a.json").write_text(text)
    gpu = open_limited()
    gpu.set_level(300)
    gpu.close()
    assert limits_set(sim_dir) == [300, 500]


@pytest.mark.parametrize("spec", ["none", "nvml:GPU-nowhere"])
def test_without_a_gpu_there_is_a_reason_and_nothing_hangs(open_limited: Open, spec: str) -> None:
    gpu = open_limited(spec)
    with pytest.raises(DeviceError):
        gpu.bounds()
    gpu.set_level(100)
    gpu.restore()


def test_the_helper_restores_a_limit_if_training_cannot(open_limited: Open, sim_dir: Path, tmp_path: Path) -> None:
    """As when training and its clock process are killed at once."""
    gpu = at_200_w(open_limited, sim_dir)

    def sockets() -> int:
        links = Path(f"/proc/{gpu.clocks.pid}/fd").iterdir()
        return sum(os.readlink(link).startswith("socket:") for link in links if link.is_symlink())

    token = secrets.token_hex(16)
    address, before = f"pfo-fs-test-{token[:12]}", sockets()
    helper = HelperClient(address, str(tmp_path / "shared"), token, 0, {})
    try:
        gpu.report_to(address, 0, token)
        wait_for(lambda: sockets() > before, what="the report to the helper")
        os.kill(gpu.clocks.pid, signal.SIGKILL)
        wait_for(lambda: limits_set(sim_dir)[-1] == 500, what="the limit of before")
    finally:
        helper.close()


def test_sigterm_to_the_clock_process_restores_the_limit(open_limited: Open, sim_dir: Path) -> None:
    gpu = at_200_w(open_limited, sim_dir)
    os.kill(gpu.clocks.pid, signal.SIGTERM)
    wait_for(lambda: limits_set(sim_dir) == [200, 500])
    wait_for(gpu.check)
    assert "SIGTERM" in gpu.problem, "known without asking"
    gpu.set_level(300)
    assert read_energies([gpu])[0].energy_j >= 0
    assert limits_set(sim_dir) == [200, 500]


def test_a_limit_is_in_force_once_it_has_settled(open_limited: Open, sim_dir: Path) -> None:
    gpu = open_limited()
    os.kill(gpu.clocks.pid, signal.SIGSTOP)
    gpu.set_level(200)
    threading.Timer(0.1, os.kill, (gpu.clocks.pid, signal.SIGCONT)).start()
    gpu.settle(time.monotonic() + HANGS_AFTER_S)
    assert set(limits_set(sim_dir)) == {200}, "a process that goes on after a stop may set it once more"
    assert gpu.check() == ""


def test_the_old_limit_is_noted_first(open_limited: Open, sim_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PFO_FS_SIM_FAULT", "limit:2")
    gpu = SimulatedGpu("a")
    limits = PowerLimits(gpu, GpuUndo(gpu).limit)
    noted: list[str] = []
    monkeypatch.setattr(gpu, "set_power_limit_w", lambda _: noted.append(",".join(p.name for p in sim_dir.glob("p*"))))
    ours, theirs = socket.socketpair()
    limits.take(b'{"ask": "limits"}\n{"ask": "set", "limit_w": 200}\n', theirs)
    assert noted == ["", "power-limit-SIM-a.json"]
    gpu.close()
    ours.close()
    theirs.close()


def test_a_hanging_driver_delays_training_once(open_limited: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = open_limited()
    os.kill(gpu.clocks.pid, signal.SIGSTOP)
    try:
        gpu.set_level(200)
        gpu.settle(time.monotonic() + 0.05)
        assert "the driver may hang" in gpu.problem
        gpu.restore()
        gpu.settle(math.inf)
        assert gpu.ask({"ask": "energy"})(math.inf) == {"error": gpu.problem}
    finally:
        os.kill(gpu.clocks.pid, signal.SIGCONT)


def test_the_limit_of_a_job_that_still_runs_is_left_to_it(open_limited: Open, sim_dir: Path) -> None:
    at_200_w(open_limited, sim_dir)
    another = open_limited()
    assert limits_set(sim_dir) == [200, 200], "tried, and not changed"
    another.set_level(300)
    wait_for(lambda: limits_set(sim_dir)[-1] == 300)
    another.close()
    assert limits_set(sim_dir) == [200, 200, 300, 500], "what the first one found"


TRAINER = """
import os, signal, sys, time
from pfo_fs.power_limit import EnergyMonitor, GlobalPowerLimitOptimizer, Warmup
signal.signal(signal.SIGINT, signal.default_int_handler)
how, knob, path = sys.argv[1:]
monitor = EnergyMonitor(specs=["simulated:a"], knob=knob)
optimizer = GlobalPowerLimitOptimizer(monitor, knob=knob, pl_step=250, clock_step=300, profile_path=path)
for step in range(52):
    optimizer.on_step_begin()
assert optimizer.state in (Warmup(250, 10), Warmup(1110, 10, "MHz")), optimizer.state
child = os.fork() if how == "forked" else -1
if child == 0:
    time.sleep(60)
    os._exit(0)
print(child, flush=True)
if how == "exception":
    raise RuntimeError("training has failed")
time.sleep(60)
"""


@pytest.mark.parametrize(
    ("how", "killer", "knob"),
    [
        ("alone", signal.SIGKILL, "power_limit"),
        ("forked", signal.SIGKILL, "power_limit"),
        ("exception", None, "power_limit"),
        ("alone", signal.SIGKILL, "clock"),
    ],
)
def test_limit_or_clock_is_back_after_the_trainers_death(
    sim_dir: Path, tmp_path: Path, processes: Any, how: str, killer: signal.Signals | None, knob: str
) -> None:
    """Also while a child that the trainer forked, a data loader's worker, lives on."""
    levels, top, low, before = (limits_set, 500, 250, 500) if knob == "power_limit" else (clocks_set, 1410, 1110, 0)
    trainer = processes.python("-c", TRAINER, how, knob, str(tmp_path / "profile.json"))
    child = int(trainer.stdout.readline())
    try:
        if killer is not None:
            wait_for(lambda: levels(sim_dir) == [top, low], what="the level")
            trainer.send_signal(killer)
        wait_for(lambda: levels(sim_dir)[-2:] == [low, before], what="the old level")
        trainer.wait(HANGS_AFTER_S)
        assert not (tmp_path / "profile.json").exists()
    finally:
        if child > 0:
            os.kill(child, signal.SIGKILL)


def test_a_window_has_the_time_and_energy_of_each_gpu() -> None:
    monitor = EnergyMonitor(specs=["simulated:a", "simulated:b"])
    kernels = monitor.simulated_kernels(time_scale=1)
    model = kernels.model("backward", 0)
    monitor.begin_window("w")
    for _ in range(6):  # GPUs are read one after the other, on a busy machine 20 ms apart
        kernels.run("backward")
    measured = monitor.end_window("w")
    monitor.close()
    busy_s, idle_w = 6 * model.time_s(1410), A100.blocking_power_w
    assert measured.time >= busy_s
    busy_j = model.power_w(1410) * busy_s + idle_w * (measured.time - busy_s)
    assert measured.gpu_energy[0] == pytest.approx(busy_j, rel=0.1)
    assert measured.gpu_energy[1] == pytest.approx(idle_w * measured.time, rel=0.1)
    assert measured.total_energy == sum(measured.gpu_energy.values())


def test_windows_that_do_not_match_are_errors() -> None:
    monitor = EnergyMonitor(specs=["simulated:a"])
    with pytest.raises(ConfigError, match="has not begun"):
        monitor.end_window("w")
    monitor.begin_window("w")
    with pytest.raises(ConfigError, match="begun already"):
        monitor.begin_window("w")
    assert monitor.end_window("w", cancel=True).time == 0
    monitor.begin_window("w")
    monitor.close()
    with pytest.raises(DeviceError):
        monitor.end_window("w")
    with pytest.raises(ConfigError, match="not by both"):
        EnergyMonitor([0], specs=["none"])


def test_a_choice_not_in_force_any_more_is_one_warning(sim_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    monitor = EnergyMonitor(specs=["simulated:a"])
    with GlobalPowerLimitOptimizer(
        monitor, Time(), wait_steps=0, warmup_steps=1, profile_steps=1, pl_step=300
    ) as optimizer:
        while not isinstance(optimizer.state, Done):
            optimizer.on_step_begin()
        os.kill(monitor.gpus[0].clocks.pid, signal.SIGKILL)
        wait_for(lambda: (optimizer.on_step_begin(), isinstance(optimizer.state, Off))[1])
        for _ in range(5):
            optimizer.on_step_begin()
    monitor.close()
    wait_for(lambda: limits_set(sim_dir)[-1] == 500)
    assert sum("left alone" in record.message for record in caplog.records) == 1


def test_zeuss_own_monitor_does_as_well(sim_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that replays what a real one has recorded."""
    zeus = pytest.importorskip("zeus.utils.testing", reason="needs Zeus, with which it compares")
    rows = ["start_time,window_name,elapsed_time,gpu0_energy", "0,w,1.0,400", "0,w,1.1,300"]
    (tmp_path / "log.csv").write_text("\n".join(rows) + "\n")
    monitor = zeus.ReplayZeusMonitor(log_file=tmp_path / "log.csv", ignore_sync_execution=True, match_window_name=False)
    monkeypatch.setenv("PFO_FS_GPU", "simulated:a")
    with (
        monitor.log_file,
        GlobalPowerLimitOptimizer(monitor, wait_steps=0, warmup_steps=1, profile_steps=2, pl_step=300) as optimizer,
    ):
        for step in range(12):
            if step == 3:
                optimizer.on_epoch_end()  # in the middle of a window
            optimizer.on_step_begin()
    assert [(m.level, m.energy, m.time) for m in optimizer.measurements] == [(500, 400.0, 1.0), (200, 300.0, 1.1)]


CLOCKS: dict[str, Any] = {"knob": "clock", "clock_step": 300, "wait_steps": 0, "warmup_steps": 1, "profile_steps": 2}


def train_for(monitor: pl.EnergyMonitor, optimizer: pl.GlobalPowerLimitOptimizer, steps: int) -> None:
    kernels = monitor.simulated_kernels(time_scale=50)
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
        monitor, pl.MaxSlowdownConstraint(1.5), profile_path=path, pl_step=1, **CLOCKS
    ) as optimizer:
        assert optimizer.power_limits == [1410, 1110, 810, 510]
        train_for(monitor, optimizer, 14)
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
    wait_for(path.exists, what="the profile")  # the optimizer waits for two seconds, and a slow disk takes longer
    assert [m["clock"] for m in json.loads(path.read_text())["measurements"]] == [1410, 1110, 810, 510]


@pytest.mark.parametrize(
    ("knob", "fault"), [("clock", "permission"), ("clock", "lock:2"), ("power_limit", "permission")]
)
def test_where_levels_cannot_be_set_there_is_one_warning_and_training_goes_on(
    sim_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, knob: Any, fault: str
) -> None:
    monkeypatch.setenv("PFO_FS_SIM_FAULT", fault)
    monitor = pl.EnergyMonitor(specs=["simulated:a"], knob=knob)
    with pl.GlobalPowerLimitOptimizer(monitor, **{**CLOCKS, "knob": knob}) as optimizer:
        train_for(monitor, optimizer, 20)
        assert isinstance(optimizer.state, pl.Off)
    monitor.close()
    said = [record.message for record in caplog.records if not record.message.startswith("the clock process says")]
    name, what = {"clock": ("clock", "Clocks"), "power_limit": ("power limit", "Power limits")}[knob]
    assert said == [f"{name}: {optimizer.state.reason}. {what} are left alone, and training goes on"]
    assert fault == "permission" or clocks_set(sim_dir)[-1] == 0


def test_metrics_say_what_a_step_took(sim_dir: Path) -> None:
    monitor = pl.EnergyMonitor(specs=["simulated:a"], knob="clock")
    with pl.GlobalPowerLimitOptimizer(monitor, **CLOCKS) as optimizer:
        optimizer.state = pl.Done(900, "MHz")
        train_for(monitor, optimizer, 100)
        optimizer.metrics()
        found: dict[str, float] = {}

        def power_is_known() -> bool:
            train_for(monitor, optimizer, 100)
            found.update(optimizer.metrics())
            return abs(found.get("pfo_fs/clock_mhz", 0) - 900) < 1

        wait_for(power_is_known)
    monitor.close()
    assert set(found) == {f"pfo_fs/{key}" for key in ("step_time_s", "energy_j", "power_w", "clock_mhz")}
    assert all(type(value) is float for value in found.values())
    assert found["pfo_fs/energy_j"] == pytest.approx(found["pfo_fs/power_w"] * found["pfo_fs/step_time_s"])
    assert 80 < found["pfo_fs/power_w"] < 320
