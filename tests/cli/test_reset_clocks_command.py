"""`pfo-fs reset-clocks`, on simulated GPUs and stand-ins for drivers."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from commands import Done, pfo_fs
from fake_amdsmi import ADDRESSES, FakeAmdSmi
from fake_nvml import Fault
from faulty_nvml import UUID, Bench

from pfo_fs.device.clocks.undo_note import clock_note, limit_note
from pfo_fs.device.simulated.gpu import SimulatedGpu


def test_clocks_and_limit_that_a_killed_job_has_left_are_reset(sim_dir: Path) -> None:
    gpu = SimulatedGpu("left")
    gpu.lock_clock_mhz(900)
    gpu.set_power_limit_w(200)
    pfo_fs("reset-clocks", "simulated:left", "--power-limit", 400, code=0)
    assert '"reset"' in (sim_dir / "left.log").read_text().splitlines()[-2]
    assert gpu.power_limit_w() == 400


def test_a_gpu_that_cannot_be_reset_is_named_and_the_next_one_is_reset(sim_dir: Path) -> None:
    SimulatedGpu("good").lock_clock_mhz(900)
    done = pfo_fs("reset-clocks", "nonsense", "simulated:good")
    assert (done.returncode, "nonsense" in done.said) == (1, True)
    assert '"reset"' in (sim_dir / "good.log").read_text().splitlines()[-1]


def test_an_amd_gpu_that_is_named_is_reset(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeAmdSmi()
    monkeypatch.setitem(sys.modules, "amdsmi", fake)
    pfo_fs("reset-clocks", f"amd:{ADDRESSES[0]}", code=0)
    assert fake.changes == [(0, 0)]


def reset(bench: Bench) -> Done:
    """Runs the command, in virtual time, over a GPU that is locked at 900 MHz."""
    bench.nvml.lock_mhz = 900
    return pfo_fs("reset-clocks", f"nvml:{UUID}", "--wait", 5)


def test_a_driver_that_refuses_at_first_is_asked_again(bench: Callable[..., Bench]) -> None:
    one = bench(Fault("nvmlDeviceResetGpuLockedClocks", 999, count=4))
    done = reset(one)
    assert (done.returncode, one.nvml.lock_mhz) == (0, 0), done


@pytest.mark.parametrize("code", [4, 10, 15, 999])
def test_the_exit_status_says_that_the_driver_does_not_reset(bench: Callable[..., Bench], code: int) -> None:
    one = bench(Fault("nvmlDeviceResetGpuLockedClocks", code))
    done = reset(one)
    assert (done.returncode, one.nvml.lock_mhz) == (1, 900)
    assert f"NVML error {code}" in done.said
    assert one.nvml.calls["nvmlDeviceResetGpuLockedClocks"] > 3


@pytest.mark.parametrize("only_limits", [False, True])
def test_a_limit_that_a_job_has_noted_goes_back_and_the_notes_go(
    bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch, only_limits: bool
) -> None:
    monkeypatch.setattr("pfo_fs.device.clocks.undo_note.start_of", lambda pid: "")  # that job has ended
    if only_limits:
        monkeypatch.setenv("PFO_FS_CLOCK_BACKEND", "power-cap")
    one = bench(*[Fault("nvmlDeviceResetGpuLockedClocks", 4)] * only_limits)
    limit_note(UUID).write(400, 200)
    one.nvml.limit_mw = 200_000
    if not only_limits:
        clock_note(UUID).write(0, 900)
        one.nvml.lock_mhz = 900
    pfo_fs("reset-clocks", f"nvml:{UUID}", code=0)
    assert (one.nvml.lock_mhz, one.nvml.limit_mw, one.notes()) == (0, 400_000, set())
    assert one.nvml.set_mhz == ([] if only_limits else [0])
