"""The real clock process through stand-ins for zeusd and sudo: choice, deaths, and the newest request."""

import os
import signal
import sys
from pathlib import Path

import pytest
from clock_runs import ListeningHelper, Start, Trainer
from clock_stand_ins import Zeusd
from fake_nvml import UUIDS, FakeNvml, use_library
from running import Processes, wait_for

from pfo_fs.helper.process import reset_gpu
from pfo_fs.ipc import messages

pytestmark = pytest.mark.usefixtures("zeusd_socket")
SPEC = f"nvml:{UUIDS[1]}"


@pytest.fixture(autouse=True)
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node with GPUs whose clocks this user may not set through NVML."""
    folder = tmp_path / "node"
    folder.mkdir()
    use_library(monkeypatch, folder / "gpus", "A100", may_set=False)
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml())


def test_a_variable_decides_if_no_argument_does(zeusd: Zeusd, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PFO_FS_CLOCK_BACKEND", "none")
    none, named, wrong = start(SPEC), start(SPEC, clock_backend="zeusd"), start(SPEC, clock_backend="magic")
    assert (none.info.clock_backend, none.info.clocks_mhz) == ("none", [])
    assert "clock_backend is 'none'" in none.message
    assert (named.info.clock_backend, named.message) == ("zeusd", "")
    assert (named.info.clocks_mhz[0], named.info.clocks_mhz[-1]) == (1410, 210)
    assert "no clock backend 'magic'" in wrong.message


def test_a_trainer_killed_while_zeusd_hangs_leaves_default_clocks_later(zeusd: Zeusd, processes: Processes) -> None:
    zeusd.hangs_on = "set_gpu_locked_clocks"
    zeusd.runs.clear()
    trainer = Trainer(processes, SPEC, 1395, "does not wait", clock_backend="zeusd")
    wait_for(lambda: zeusd.under_way == 1 and zeusd.clock_changes == [0], what="the request that hangs")
    trainer.process.kill()
    zeusd.runs.set()
    wait_for(lambda: zeusd.clock_changes[:3] == [0, 1395, 0], what="the reset")  # which may be made twice


@pytest.mark.parametrize("asked", ["auto", "zeusd"])
def test_when_trainer_and_clock_process_are_killed_the_helper_resets_through_the_same_way(
    zeusd: Zeusd, processes: Processes, monkeypatch: pytest.MonkeyPatch, asked: str
) -> None:
    """The variable does not count for that: the job may have asked for another way by the argument."""
    with ListeningHelper("helper") as helper:
        trainer = Trainer(processes, SPEC, 1395, clock_backend=asked, report_to=helper.address)
        hello = helper.wait(messages.Hello)
        clock_pid, *_ = trainer.told()
        os.kill(clock_pid, signal.SIGKILL)  # first: the end of its trainer would make it reset, too
        trainer.process.kill()
    assert zeusd.clock_changes == [0, 1395]
    monkeypatch.setenv("PFO_FS_CLOCK_BACKEND", "none")
    assert reset_gpu(hello.gpu) == ""
    wait_for(lambda: zeusd.clock_changes == [0, 1395, 0], what="the reset")
    assert hello.gpu == messages.GpuToReset(SPEC, asked)
