"""Power limits in place of clocks: about the clock that was asked for, and the limit of before on every way back."""

import os
import signal
from pathlib import Path

import pytest
from clock_runs import Trainer, wait_for_end
from power_limit_fakes import limits_set
from running import Processes, wait_for

from pfo_fs.device.clock_backends.power_cap import PowerCapGpu
from pfo_fs.device.clock_client import ClockProcess
from pfo_fs.device.clock_start import ClockOptions
from pfo_fs.device.clocks.clock_setter import ClockSetter
from pfo_fs.device.clocks.driver_calls import HostDriver
from pfo_fs.device.clocks.undo import GpuUndo
from pfo_fs.device.gpu.interface import CAP_ACTS_S, POWER_CAP, ClockSeen
from pfo_fs.device.gpu.spec import open_gpu
from pfo_fs.device.metering.instruction_power import Power
from pfo_fs.device.shared_page import SharedPage
from pfo_fs.device.simulated.gpu import SimulatedGpu
from pfo_fs.device.simulated.physics import MODELS
from pfo_fs.errors import DeviceError
from pfo_fs.helper.process import reset_gpu
from pfo_fs.ipc.messages import GpuToReset

pytestmark = pytest.mark.usefixtures("sim_dir")


@pytest.mark.parametrize(("name", "least", "most"), [("A100", 1.0, 1.75), ("A40", 0.85, 1.1)])
def test_a_limit_picks_about_the_clock(monkeypatch: pytest.MonkeyPatch, name: str, least: float, most: float) -> None:
    """The simulated A40 is at its power limit from 1,440 MHz on."""
    monkeypatch.setenv("PFO_FS_SIM_MODEL", name)
    model, gpu = MODELS[name], open_gpu("simulated:a", POWER_CAP)
    assert isinstance(gpu, PowerCapGpu)
    assert gpu.try_reset() == ""
    runs = {instruction: model.coefficients(instruction) for instruction in ("forward", "backward")}
    top_mhz, lowest_mhz = model.clocks_mhz[0], model.clocks_mhz[-1]
    waiting = Power("", 0, model.blocking_power_w, 1.0, 5.0)
    gpu.learn([waiting, *(Power(kind, 0, run.power_w(top_mhz), 5.0, 1.0) for kind, run in runs.items())])
    gpu.learn([Power("forward", 0, 150.0, 1.0, 1.0)])  # what a clock means does not change any more
    for mhz in (mhz for mhz in model.clocks_mhz if 0.45 * top_mhz < mhz < 0.9 * top_mhz):
        gpu.lock_clock_mhz(mhz)
        for run in runs.values():
            assert least < run.within(gpu.power_limit_w(), lowest_mhz).cap_mhz / mhz < most
    gpu.lock_clock_mhz(top_mhz)
    assert gpu.power_limit_w() == model.power_limits_w[1]


def test_a_limit_never_rises_above_that_of_before_and_what_others_have_set_meanwhile_stays(sim_dir: Path) -> None:
    site, gpu = SimulatedGpu("a"), open_gpu("simulated:a", POWER_CAP)
    site.set_power_limit_w(400)
    gpu.learn([Power("forward", 0, 480.0, 1.0, 1.0)])
    for mhz in (1395, 1410):
        gpu.lock_clock_mhz(mhz)
        assert gpu.power_limit_w() == 400
    gpu.lock_clock_mhz(900)
    assert gpu.shows_clock(900)
    site.set_power_limit_w(300)
    gpu.lock_clock_mhz(1395)
    gpu.reset_clocks()
    assert not gpu.shows_clock(1395)
    assert gpu.power_limit_w() == 300
    assert not list(sim_dir.glob("power-limit-*"))


def test_a_gpu_at_its_limit_is_not_held_back_but_one_that_is_too_hot_is(monkeypatch: pytest.MonkeyPatch) -> None:
    for told, means in (("power limit", ""), ("power limit, thermal slowdown", "thermal slowdown")):
        monkeypatch.setattr(SimulatedGpu, "clock_seen", lambda _, told=told: ClockSeen(900, told))
        assert open_gpu("simulated:a", POWER_CAP).clock_seen() == ClockSeen(0, means)


def test_without_a_note_for_the_next_process_no_limit_is_set(sim_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PFO_FS_RUN_DIR", str(sim_dir / "missing" / "folder"))
    with pytest.raises(DeviceError, match="PFO_FS_RUN_DIR"):
        open_gpu("simulated:a", POWER_CAP).lock_clock_mhz(900)
    assert limits_set(sim_dir) == []


def test_a_lower_limit_waits_until_the_one_before_has_acted_and_a_higher_one_does_not() -> None:
    gpu = open_gpu("simulated:a", POWER_CAP)
    words, times_ns = SharedPage.create().words, []
    note = lambda time_ns, mhz, waited_ns: times_ns.append(time_ns)  # noqa: E731
    setter = ClockSetter(gpu, words, GpuUndo(gpu).clock, note, why_clocks_stay="", driver=HostDriver(""))
    setter.apply(lambda: 900)
    acts_ns = times_ns[0] + round(CAP_ACTS_S * 1e9)
    for mhz, may_soon in ((750, False), (1200, True), (0, True)):
        assert setter.may_set(mhz, acts_ns - 1) is may_soon
        assert setter.may_set(mhz, acts_ns)


@pytest.mark.parametrize("killed", ["clock process", "both", "everything"])
def test_the_limit_of_before_is_back_whatever_is_killed(sim_dir: Path, processes: Processes, killed: str) -> None:
    SimulatedGpu("a").set_power_limit_w(450)  # the site's own
    trainer = Trainer(processes, how="checks", clock_backend=POWER_CAP)
    clock_pid, _, way = trainer.told()
    assert way == POWER_CAP
    assert limits_set(sim_dir)[-1] < 450
    if killed != "clock process":
        trainer.process.send_signal(signal.SIGSTOP)
    os.kill(clock_pid, signal.SIGKILL)
    wait_for_end(clock_pid)
    if killed != "clock process":
        trainer.process.kill()
        assert limits_set(sim_dir)[-1] < 450
    if killed == "both":
        assert reset_gpu(GpuToReset("simulated:a", POWER_CAP)) == ""
    elif killed == "everything":
        ClockProcess("simulated:a", ClockOptions()).close()
    wait_for(lambda: limits_set(sim_dir)[-1] == 450, what="the site's limit")
    wait_for(lambda: not list(sim_dir.glob("power-limit-*")), what="the end of the note")
    assert "lock" not in (sim_dir / "a.log").read_text()
