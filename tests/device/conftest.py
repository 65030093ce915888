"""GPUs through NVML, without a GPU; clock processes; kernels of a simulated GPU."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from clock_runs import GpuLog, Start
from clock_stand_ins import Zeusd
from fake_nvml import FakeNvml
from running import HANGS_AFTER_S

from pfo_fs.device.clock_client import ClockProcess
from pfo_fs.device.clock_start import ClockOptions


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    module = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", module)
    for variable in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"):
        monkeypatch.delenv(variable, raising=False)
    return module


@pytest.fixture
def gpu(sim_dir: Path) -> GpuLog:
    return GpuLog(sim_dir)


@pytest.fixture
def start(sim_dir: Path) -> Iterator[Start]:
    """Starts a clock process, of simulated GPU `a` unless another one is named."""
    started: list[ClockProcess] = []

    def start_one(spec: str = "simulated:a", *, start_timeout_s: float = HANGS_AFTER_S, **options: Any) -> ClockProcess:
        started.append(ClockProcess(spec, ClockOptions(**options), start_timeout_s=start_timeout_s))
        return started[-1]

    yield start_one
    for clocks in started:
        clocks.close(10)


@pytest.fixture
def clocks(start: Start) -> ClockProcess:
    clocks = start()
    assert clocks.message == ""
    return clocks


@pytest.fixture
def zeusd_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where zeusd is looked for, on a host on which it may run."""
    for variable in ("PFO_FS_CLOCK_BACKEND", "ZEUSD_TOKEN"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("ZEUSD_SOCK_PATH", str(tmp_path / "zeusd.sock"))
    return tmp_path / "zeusd.sock"


@pytest.fixture
def zeusd(zeusd_socket: Path) -> Iterator[Zeusd]:
    stand_in = Zeusd(zeusd_socket)
    yield stand_in
    stand_in.close()
