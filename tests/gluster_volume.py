"""Real GlusterFS volumes for tests."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from running import HANGS_AFTER_S, Gluster, wait_for

_SERVER = """
volume posix
  type storage/posix
  option directory {root}/brick
end-volume
{locks}volume brick
  type performance/io-threads
  option thread-count 4
  subvolumes {below}
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
_LOCKS = """volume locks
  type features/locks
  subvolumes posix
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


@contextmanager
def gluster_volume(
    root: Path, *, client_options: Sequence[str] = ("--entry-timeout=1", "--attribute-timeout=1"), locks: bool = True
) -> Iterator[Gluster]:
    """Serves `root/brick`, made if it is missing, and mounts it at `root/a` and `root/b`; skips where that cannot be.

    Args:
        root: A folder of the test.
        client_options: Options of both mounts.
        locks: Whether the server has locks.
    """
    if os.geteuid() != 0 or not shutil.which("glusterfsd") or not Path("/dev/fuse").exists():
        pytest.skip("needs root, glusterfs-server and FUSE")
    for name in ("brick", "a", "b"):
        (root / name).mkdir(parents=True, exist_ok=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server_file = _SERVER.format(
        root=root, port=port, locks=_LOCKS if locks else "", below="locks" if locks else "posix"
    )
    (root / "server.vol").write_text(server_file)
    (root / "client.vol").write_text(_CLIENT.format(port=port))

    def start(program: str, *arguments: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [program, "--no-daemon", *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    server = start("glusterfsd", "-f", f"{root}/server.vol", "-l", f"{root}/server.log", "-p", f"{root}/server.pid")

    def listening() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    mounts = (root / "a", root / "b")
    clients: list[subprocess.Popen[bytes]] = []
    try:
        wait_for(listening, what="the GlusterFS server")
        clients += [
            start("glusterfs", "-f", f"{root}/client.vol", "-l", f"{mount}.log", *client_options, str(mount))
            for mount in mounts
        ]
        for mount in mounts:
            wait_for(lambda mount=mount: os.path.ismount(mount), what=f"the mount {mount}")
        yield Gluster(mounts, server)
    finally:
        server.send_signal(signal.SIGCONT)
        for mount in mounts:
            subprocess.run(["umount", "-l", str(mount)], check=False, stderr=subprocess.DEVNULL)
        for process in (*clients, server):
            process.terminate()
            process.wait(HANGS_AFTER_S)
