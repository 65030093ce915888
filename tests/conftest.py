"""Fixtures that several test modules use."""

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from clock import Clock
from fake_nvml import Fault
from gluster_volume import Gluster, gluster_volume
from hypothesis import HealthCheck, settings
from running import HANGS_AFTER_S, Processes, children

from pfo_fs.device.simulated.gpu import SimulatedKernels

# Settings of the shell that starts the tests must not change what they find.
for variable in [name for name in os.environ if name.startswith("PFO_FS_")]:
    del os.environ[variable]
# The default scheduler profiles a job and plans for it; most tests are about something else.
os.environ["PFO_FS_SCHEDULER"] = "Manual"

# The same examples in each run, so that a test fails for the change that broke it, not by chance. `search` draws new
# ones: HYPOTHESIS_PROFILE=search pytest ... finds what nobody has thought of. No verdict is by the time that it takes.
settings.register_profile("search", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("pfo-fs", settings.get_profile("search"), derandomize=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "pfo-fs"))


def pytest_xdist_auto_num_workers() -> int:
    return len(os.sched_getaffinity(0)) + 1  # real processes wait much of their time


_ENDS_WITHIN_S = 20.0
"""What a test has told to end may take so long; it must not need anything else."""

SHARED_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


@pytest.fixture(scope="session", autouse=True)
def _folders_of_this_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Simulated GPUs, and notes about GPUs, of tests that name no folder: not those of other runs on this machine."""
    with pytest.MonkeyPatch.context() as patch:
        for variable in ("PFO_FS_SIM_DIR", "PFO_FS_RUN_DIR"):
            patch.setenv(variable, str(tmp_path_factory.mktemp(variable.lower())))
        yield


@pytest.fixture(autouse=True)
def _nothing_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test leaves no thread and no process: they would take time from other tests, and see what these replace."""
    if request.node.get_closest_marker("slurm"):
        yield  # its cluster serves all tests of the module
        return
    threads, processes = set(threading.enumerate()), set(children())
    yield
    until_s = time.monotonic() + _ENDS_WITHIN_S
    while left := [
        text
        for text in (
            *(f"thread {thread.name}" for thread in threading.enumerate() if thread not in threads),
            *(f"process {pid}: {command}" for pid, command in children().items() if pid not in processes),
        )
        # The service of W&B, and the servers of multiprocessing, end with the process that has started them.
        if "wandb-" not in text and "from multiprocessing." not in text
    ]:
        if time.monotonic() > until_s:
            pytest.fail(f"the test has left {', '.join(left)}")
        time.sleep(0.01)


@pytest.fixture
def clock() -> Clock:
    """A clock that stands still until it is moved."""
    return Clock()


@pytest.fixture
def shared_data() -> Path:
    """Real profiles and plans; they lie beside the checkout and are not part of the project."""
    if not SHARED_DATA.is_dir():
        pytest.skip("needs ../shared/data, which is not part of the project")
    return SHARED_DATA


@pytest.fixture
def sim_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of their own for simulated GPUs, and for notes about them; no other setting counts."""
    folder = tmp_path / "sim"
    folder.mkdir(mode=0o700)
    for variable in ("PFO_FS_SIM_FAULT", "PFO_FS_SIM_MODEL", "PFO_FS_DRY_RUN", "PFO_FS_GPU"):
        monkeypatch.delenv(variable, raising=False)
    for variable in ("PFO_FS_SIM_DIR", "PFO_FS_RUN_DIR"):
        monkeypatch.setenv(variable, str(folder))
    return folder


@pytest.fixture
def kernels(sim_dir: Path) -> Iterator[SimulatedKernels]:
    """The computing side of simulated GPU `a`."""
    kernels = SimulatedKernels("a", time_scale=2)
    yield kernels
    kernels.stream.synchronize()
    kernels.close()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Makes a `Bench`: a clock process over NVML that fails in some way, in virtual time."""
    from faulty_nvml import Bench

    made: list[Any] = []

    def make(*faults: Fault) -> Any:
        made.append(Bench(tmp_path, *faults))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def interpreter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Makes a shell script the interpreter with which processes are started."""

    def replace(script: str) -> None:
        program = tmp_path / "python"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(program))

    return replace


@pytest.fixture
def processes() -> Iterator[Processes]:
    started = Processes()
    yield started
    for process in started.started:
        process.kill()
        process.wait(HANGS_AFTER_S)
        if process.stdout:
            process.stdout.close()


@pytest.fixture
def gluster(tmp_path: Path) -> Iterator[Gluster]:
    """One GlusterFS volume, mounted twice by two client processes: what two hosts see of a shared directory."""
    with gluster_volume(tmp_path / "gluster") as volume:
        yield volume
