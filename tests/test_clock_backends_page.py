"""docs/clock-backends.md: its sudoers lines permit what is run, and its epilog resets."""

import os
import re
import subprocess
from pathlib import Path

import pytest
from clock_stand_ins import Sudo

from pfo_fs.device.clock_backends.sudo import GROUP, SudoBackend
from pfo_fs.device.gpu.interface import GpuPlace

PAGE = (Path(__file__).parents[1] / "docs" / "clock-backends.md").read_text()


def block(language: str, containing: str) -> str:
    return next(text for text in re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL) if containing in text)


def test_sudoers_lines_permit_what_is_run_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sudo = Sudo(tmp_path)
    monkeypatch.setenv("PATH", sudo.path)
    place = GpuPlace("GPU-12ab34cd-0000-ffff-0000-123456789abc", "NVIDIA A100", "0000:3b:00.0")
    backend = SudoBackend(place, asked=True)
    backend.lock_clock_mhz(1395)
    backend.reset_clocks()
    backend.set_power_limit_w(312.5)
    run = [line.partition("begins ")[2] for line in sudo.calls if " begins " in line]
    text = block("sudoers", "nvidia-smi")
    permitted = re.findall(r"/usr/bin/nvidia-smi (\^.*?\$)", text)
    assert len(permitted) == len(run) == 3
    assert all(sum(bool(re.search(pattern, command)) for pattern in permitted) == 1 for command in run)
    for other in ("-r", f"{run[0]} -pm 0", f"-i 0 {run[0]}", run[0].replace("-lgc", "-lmc")):
        assert not any(re.search(pattern, other) for pattern in permitted)
    assert f"%{GROUP} ALL" in text


def test_the_epilog_resets_the_gpus_of_the_job_only(tmp_path: Path) -> None:
    for minor, bus in enumerate(("0000:3b:00.0", "0000:3c:00.0", "0000:3d:00.0")):
        gpu = tmp_path / "gpus" / bus
        gpu.mkdir(parents=True)
        (gpu / "information").write_text(f"Model: \t\t A100\nDevice Minor: \t {minor}\n")
    smi = tmp_path / "nvidia-smi"
    smi.write_text(f'#!/bin/sh\necho "$*" >> {tmp_path}/calls\n[ "$3" = -rgc ] || echo 400.00\n')
    smi.chmod(0o755)
    script = block("bash", "#!/bin/bash").replace("/proc/driver/nvidia/gpus", f"{tmp_path}/gpus")
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    subprocess.run(["bash", "-c", script], env={"PATH": path}, check=True)
    assert not (tmp_path / "calls").exists()
    subprocess.run(["bash", "-c", script], env={"PATH": path, "SLURM_JOB_GPUS": "2,0"}, check=True)
    calls = (tmp_path / "calls").read_text().splitlines()
    changes = [call for call in calls if "--query" not in call]
    assert changes == [
        f"-i {bus} {change}" for bus in ("0000:3b:00.0", "0000:3d:00.0") for change in ("-rgc", "-pl 400.00")
    ]
