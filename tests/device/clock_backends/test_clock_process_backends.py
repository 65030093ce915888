"""The real clock process through stand-ins for zeusd and sudo: choice, deaths, and the newest request."""

from __future__ import annotations

import os
import signal
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from clock_stand_ins import TESTS, Zeusd, write_pynvml
from fake_nvml import UUIDS
from running import HANGS_AFTER_S, Processes, wait_for

from pfo_fs.device import shared_page
from pfo_fs.device.clock_client import ClockProcess
from pfo_fs.device.clock_start import ClockOptions
from pfo_fs.helper.process import reset_gpu
from pfo_fs.ipc import messages, transport

SPEC = f"nvml:{UUIDS[1]}"


@pytest.fixture(autouse=True)
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A node with GPUs whose clocks this user may not set through NVML."""
    folder = tmp_path / "node"
    folder.mkdir()
    write_pynvml(folder)
    monkeypatch.setenv("PYTHONPATH", f"{folder}{os.pathsep}{TESTS}", prepend=os.pathsep)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setitem(sys.modules, "pynvml", None)  # after the test, the module before is back
    del sys.modules["pynvml"]
    monkeypatch.setenv("ZEUSD_SOCK_PATH", str(tmp_path / "zeusd.sock"))
    monkeypatch.setenv("PFO_FS_RUN_DIR", str(folder))
    for variable in ("PFO_FS_DRY_RUN", "PFO_FS_CLOCK_BACKEND", "ZEUSD_TOKEN"):
        monkeypatch.delenv(variable, raising=False)
    return folder


@pytest.fixture
def zeusd(tmp_path: Path) -> Iterator[Zeusd]:
    stand_in = Zeusd(tmp_path / "zeusd.sock")
    yield stand_in
    stand_in.close()


@pytest.fixture
def start() -> Iterator[Callable[..., ClockProcess]]:
    started: list[ClockProcess] = []

    def start_one(**options: Any) -> ClockProcess:
        started.append(ClockProcess(SPEC, ClockOptions(**options)))
        return started[-1]

    yield start_one
    for clocks in started:
        clocks.close(0.5)
        with suppress(ChildProcessError, TypeError):  # it has ended
            os.waitpid(clocks.pid, os.WNOHANG)  # type: ignore[arg-type]
            os.kill(clocks.pid, signal.SIGKILL)  # type: ignore[arg-type]


def request(clocks: ClockProcess, mhz: int) -> None:
    clocks.words[shared_page.TARGET] = mhz
    if clocks.words[shared_page.SLEEPING]:
        clocks.ring_doorbell()


def changes(zeusd: Zeusd) -> list[int]:
    """The clocks set so far in MHz, 0 for a reset."""
    return [values.get("min_clock_mhz", 0) for number, _, values in zeusd.done if number == 1]


TRAINER = textwrap.dedent("""
    import sys, time
    from pfo_fs.device import shared_page
    from pfo_fs.device.clock_client import ClockProcess
    from pfo_fs.device.clock_start import ClockOptions
    clocks = ClockProcess(sys.argv[1], ClockOptions(clock_backend=sys.argv[2]))
    assert clocks.message == "", clocks.message
    clocks.words[shared_page.TARGET] = 1395
    clocks.ring_doorbell()
    if sys.argv[3] == "wait":
        while clocks.words[shared_page.CLOCK_MHZ] != 1395:
            time.sleep(0.001)
    print(clocks.pid, clocks.info.clock_backend, flush=True)
    time.sleep(60)
""")


def test_auto_finds_zeusd_and_the_clock_process_says_so(start: Callable[..., ClockProcess], zeusd: Zeusd) -> None:
    clocks = start()
    assert (clocks.message, clocks.info.clock_backend) == ("", "zeusd")
    assert clocks.info.clocks_mhz == [1410, 1395, 210]
    request(clocks, 210)
    wait_for(lambda: changes(zeusd) == [0, 210], what="the clock")
    clocks.close(20)
    assert changes(zeusd) == [0, 210, 0]


def test_the_environment_variable_decides_where_the_argument_does_not(
    start: Callable[..., ClockProcess], zeusd: Zeusd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PFO_FS_CLOCK_BACKEND", "none")
    none, named, wrong = start(), start(clock_backend="zeusd"), start(clock_backend="magic")
    assert (none.info.clock_backend, none.info.clocks_mhz) == ("none", [])
    assert "clock_backend is 'none'" in none.message
    assert (named.info.clock_backend, named.message) == ("zeusd", "")
    assert "no clock backend 'magic'" in wrong.message


def test_a_trainer_that_is_killed_while_zeusd_hangs_leaves_default_clocks_once_zeusd_goes_on(
    zeusd: Zeusd, processes: Processes
) -> None:
    zeusd.hangs_on = "set_gpu_locked_clocks"
    zeusd.runs.clear()
    trainer = processes.python("-c", TRAINER, SPEC, "zeusd", "at once")
    wait_for(lambda: zeusd.under_way == 1 and changes(zeusd) == [0], what="the request that hangs")
    trainer.kill()
    zeusd.runs.set()
    wait_for(lambda: changes(zeusd)[:3] == [0, 1395, 0], what="the reset")  # which may be made twice


def test_when_the_clock_process_is_killed_another_one_resets_through_the_same_way(
    start: Callable[..., ClockProcess], zeusd: Zeusd
) -> None:
    clocks = start(clock_backend="zeusd")
    assert clocks.message == ""
    request(clocks, 1395)
    wait_for(lambda: changes(zeusd) == [0, 1395], what="the clock")
    assert clocks.pid is not None
    os.kill(clocks.pid, signal.SIGKILL)
    wait_for(lambda: (clocks.check(), clocks.lost)[1], what="the death")
    wait_for(lambda: changes(zeusd) == [0, 1395, 0], what="the reset")


@pytest.mark.parametrize("asked", ["auto", "zeusd"])
def test_when_trainer_and_clock_process_are_killed_the_helper_resets_through_the_same_way(
    zeusd: Zeusd, processes: Processes, monkeypatch: pytest.MonkeyPatch, asked: str
) -> None:
    """The variable does not count for that: the job may have asked for another way by the argument."""
    address = f"pfo-fs-test-helper-{os.getpid()}"
    with transport.listen(address) as server:
        server.settimeout(HANGS_AFTER_S)
        program = TRAINER.replace("ClockOptions(", f'ClockOptions(report_to="{address}", ')
        trainer = processes.python("-c", program, SPEC, asked, "wait")
        connection, _ = server.accept()
        hello = transport.decode(connection.recv(transport.MAX_MESSAGE_BYTES), messages.Hello)
        assert trainer.stdout is not None
        clock_pid = int(trainer.stdout.readline().split()[0])
        os.kill(clock_pid, signal.SIGKILL)  # first: the end of its trainer would make it reset, too
        trainer.kill()
        connection.close()
    assert changes(zeusd) == [0, 1395]
    monkeypatch.setenv("PFO_FS_CLOCK_BACKEND", "none")
    assert hello.gpu is not None
    assert reset_gpu(hello.gpu) == ""
    wait_for(lambda: changes(zeusd) == [0, 1395, 0], what="the reset")
    assert hello.gpu == messages.GpuToReset(SPEC, asked)
