"""GPUs that were left with a locked clock or another power limit are found, and freed only if no job holds them."""

import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from commands import pfo_fs
from fake_nvml import UUIDS, FakeNvml, Fault
from faulty_nvml import Bench

from pfo_fs.device.clock_client import ClockProcess
from pfo_fs.device.clocks.undo_note import Leftover
from pfo_fs.device.gpu.interface import GpuSettings
from pfo_fs.device.gpu.spec import open_gpu
from pfo_fs.doctor.checks import check_clocks, check_node, judge_leftover

NAME = f"left-{os.getpid()}"
"""Of the GPU: jobs on this host that hold a simulated GPU are known by its name alone."""


def doctor(*arguments: str) -> tuple[int, dict[str, Any]]:
    """The exit status, and the line about what was left."""
    done = pfo_fs("doctor", "--json", *arguments, PFO_FS_GPU=f"simulated:{NAME}")
    return done.returncode, {line["name"]: line for line in done.answer["checks"]}["clocks and limits left"]


def settings_of(spec: str) -> GpuSettings:
    with closing(open_gpu(spec)) as gpu:
        return gpu.settings()


def leave(mhz: int, limit_w: float) -> None:
    """Does what a job does that is killed together with its clock process."""
    code = (
        "from pfo_fs.device.clocks.undo_note import limit_note; from pfo_fs.device.simulated.gpu import SimulatedGpu\n"
        f"gpu = SimulatedGpu('{NAME}'); limit_note(gpu.uuid).write(gpu.power_limit_w(), {limit_w})\n"
        f"gpu.lock_clock_mhz({mhz}); gpu.set_power_limit_w({limit_w})"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_gpu_that_was_left_locked_is_told_and_is_reset_only_with_fix(sim_dir: Path) -> None:
    assert doctor()[1]["ok"] is True
    leave(1200, 250)
    status, line = doctor()
    assert (status, line["ok"]) == (1, False)
    assert "clock locked at 1200 MHz, power limit 250 W instead of" in line["found"]
    assert settings_of(f"simulated:{NAME}").locked_mhz == 1200
    status, line = doctor("--fix")
    assert (status, line["ok"]) == (0, True)
    assert not settings_of(f"simulated:{NAME}").differs


def test_a_gpu_that_a_running_job_holds_is_left_alone(sim_dir: Path) -> None:
    with closing(ClockProcess(f"simulated:{NAME}")) as clocks:
        assert clocks.message == ""
        leave(1200, 250)
        status, line = doctor("--fix")
        assert (status, line["ok"]) == (0, None)
        assert "running job holds" in line["meaning"]
        assert settings_of(f"simulated:{NAME}").locked_mhz == 1200


def test_what_nvml_tells_about_limits_and_clocks(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", fake)

    def outcome(note: Leftover | None = None) -> str:
        return judge_leftover(settings_of(f"nvml:{UUIDS[0]}"), [], note)

    fake.reasons = 0x1  # idle
    assert outcome() == "none"
    assert outcome(Leftover(0, 1200, 1, in_use=False)) == "left", "though the driver does not show it"
    assert outcome(Leftover(0, 1200, 1, in_use=True)) == "none"
    fake.limit_mw = 300_000
    assert outcome() == "site", "no job has noted it: the site may have chosen it"
    assert outcome(Leftover(400.0, 300.0, 1, in_use=False)) == "left"
    assert outcome(Leftover(400.0, 300.0, 1, in_use=True)) == "in-use"
    fake.reasons, fake.clock_mhz = 0x2, 1200
    assert outcome() == "perhaps"
    fake.processes = 1
    assert outcome() == "in-use"
    assert fake.locked == []


@pytest.mark.parametrize("name", ["nvmlDeviceGetSupportedMemoryClocks", "nvmlDeviceGetSupportedGraphicsClocks"])
def test_a_gpu_that_lists_no_clocks_is_no_gpu_whose_clocks_are_ok(
    bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    """The answer is the one that the clock process of a job gets."""
    monkeypatch.setenv("ZEUSD_SOCK_PATH", str(tmp_path / "none"))
    bench(Fault(name, 3))
    gpu = open_gpu(f"nvml:{UUIDS[0]}")
    line, *ways = check_clocks(gpu)
    assert line.ok is False
    assert f"of {name}" in ways[0].found
    assert f"of {name}" in gpu.try_reset()
    gpu.close()


def test_a_gpu_without_any_energy_is_told(bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch) -> None:
    faults = [Fault(f"nvmlDeviceGet{what}", 3) for what in ("TotalEnergyConsumption", "PowerUsage")]
    one = bench(*faults)
    monkeypatch.setenv("PFO_FS_GPU", f"nvml:{UUIDS[0]}")
    found = check_node()[0]
    assert (found.name, found.ok) == ("GPUs", True)
    assert "no energy" in found.found
    assert "nvmlDeviceGetPowerUsage" in found.found
    one.nvml.name = b"NVIDIA GH200 480GB"
    assert "CPU included" in check_node()[0].found
