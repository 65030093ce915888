"""Fixtures that several test modules use."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest
from clock import Clock
from hypothesis import settings
from running import Gluster, Processes

# Settings of the shell that starts the tests must not change what they find.
for variable in [name for name in os.environ if name.startswith("PFO_FS_")]:
    del os.environ[variable]
# The default scheduler profiles a job and plans for it; most tests are about something else.
os.environ["PFO_FS_SCHEDULER"] = "Manual"

settings.register_profile("pfo-fs", deadline=None)  # these machines are noisy
settings.load_profile("pfo-fs")

SHARED_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"

T = TypeVar("T")


def wait_for(condition: Callable[[], T], timeout_s: float = 20.0, what: str = "the condition") -> T:
    """Returns the first true value of `condition`, looking often; fails after the deadline."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.01)
    raise AssertionError(f"{what} did not come true within {timeout_s} s")


@pytest.fixture(scope="session", autouse=True)
def _folders_of_this_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Simulated GPUs, and notes about GPUs, of tests that name no folder: not those of other runs on this machine."""
    with pytest.MonkeyPatch.context() as patch:
        for variable in ("PFO_FS_SIM_DIR", "PFO_FS_RUN_DIR"):
            patch.setenv(variable, str(tmp_path_factory.mktemp(variable.lower())))
        yield


@pytest.fixture
def clock() -> Clock:
    """A clock that stands still until it is moved."""
    return Clock()


@pytest.fixture(name="wait_for")
def wait_for_fixture() -> Callable[..., object]:
    return wait_for


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
def processes() -> Iterator[Processes]:
    started = Processes()
    yield started
    for process in started.started:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        process.wait(10)
        if process.stdout:
            process.stdout.close()


_SERVER = """
volume posix
  type storage/posix
  option directory {root}/brick
end-volume
volume locks
  type features/locks
  subvolumes posix
end-volume
volume brick
  type performance/io-threads
  option thread-count 4
  subvolumes locks
end-volume
volume server
  type protocol/server
  option transport-type tcp
  option transport.socket.bind-address 127.0.0.1
  option transport.socket.listen-port {port}
  option auth.addr.brick.allow 127.0.0.1
  subvolumes brick
end-volume
"""
_CLIENT = """
volume client
  type protocol/client
  option transport-type tcp
  option remote-host 127.0.0.1
  option remote-port {port}
  option remote-subvolume brick
end-volume
"""


@pytest.fixture
def gluster(tmp_path: Path) -> Iterator[Gluster]:
    """One GlusterFS volume, mounted twice by two client processes: what two hosts see of a shared directory."""
    if os.geteuid() != 0 or not shutil.which("glusterfsd") or not Path("/dev/fuse").exists():
        pytest.skip("needs root, glusterfs-server and FUSE")
    root = tmp_path / "gluster"
    for name in ("brick", "a", "b"):
        (root / name).mkdir(parents=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (root / "server.vol").write_text(_SERVER.format(root=root, port=port))
    (root / "client.vol").write_text(_CLIENT.format(port=port))

    def start(program: str, *arguments: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [program, "--no-daemon", *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    server = start("glusterfsd", "-f", f"{root}/server.vol", "-l", f"{root}/server.log", "-p", f"{root}/server.pid")

    def listening() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    wait_for(listening, what="the GlusterFS server")
    mounts = (root / "a", root / "b")
    clients = [
        start(
            "glusterfs", "-f", f"{root}/client.vol", "-l", f"{mount}.log",
            "--entry-timeout=1", "--attribute-timeout=1", str(mount),
        )
        for mount in mounts
    ]  # fmt: skip
    for mount in mounts:
        wait_for(lambda mount=mount: os.path.ismount(mount), what=f"the mount {mount}")
    try:
        yield Gluster(mounts, server)
    finally:
        server.send_signal(signal.SIGCONT)
        for mount in mounts:
            subprocess.run(["umount", "-l", str(mount)], check=False)
        for process in (*clients, server):
            process.terminate()
            process.wait(10)
