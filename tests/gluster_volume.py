"""Real GlusterFS volumes for tests."""

import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from running import HANGS_AFTER_S, wait_for

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
  option transport.socket.bind-address {address}
  option transport.socket.listen-port {port}
  option auth.addr.brick.allow {allowed}.*
  subvolumes brick
end-volume
"""
_CLIENT = """
volume client
  type protocol/client
  option transport-type tcp
  option remote-host {address}
  option remote-port {port}
  option remote-subvolume brick
end-volume
"""
_SEES_SOON = ("--entry-timeout=1", "--attribute-timeout=1")
_PROBE = "import socket, sys; sys.exit(socket.socket().connect_ex((sys.argv[1], int(sys.argv[2]))))"


class Gluster:
    """A volume of GlusterFS, its server and its mounts, each a process of its own.

    Args:
        root: A folder of the test; `root/brick` is served, and made if it is missing.
        address, port: Where the server listens.
        within: A command that runs the server in its namespace.
    """

    def __init__(self, root: Path, address: str, port: int, *, within: Sequence[str] = ()) -> None:
        self._root, self._within, self._listens_at = root, within, [address, str(port)]
        self._clients: list[subprocess.Popen[bytes]] = []
        self.mounts: list[Path] = []
        (root / "brick").mkdir(parents=True, exist_ok=True)
        place = {"root": root, "address": address, "port": port, "allowed": address.rpartition(".")[0]}
        (root / "server.vol").write_text(_SERVER.format(**place))
        (root / "client.vol").write_text(_CLIENT.format(**place))
        self.server = self._serve()

    def _serve(self) -> subprocess.Popen[bytes]:
        files = ["-f", f"{self._root}/server.vol", "-l", f"{self._root}/server.log", "-p", f"{self._root}/server.pid"]
        server = start(*self._within, "glusterfsd", "--no-daemon", *files)
        probe = [*self._within, "python3", "-c", _PROBE, *self._listens_at]
        wait_for(lambda: start(*probe).wait() == 0, "the GlusterFS server")
        return server

    def restart_server(self) -> None:
        self.server.wait(HANGS_AFTER_S)
        self.server = self._serve()

    def mount(self, at: Path, *, within: Sequence[str] = ()) -> None:
        at.mkdir(parents=True, exist_ok=True)
        self.mounts.append(at)
        files = ["-f", f"{self._root}/client.vol", "-l", f"{at}.log"]
        self._clients.append(start(*within, "glusterfs", "--no-daemon", *files, *_SEES_SOON, str(at)))
        wait_for(lambda: os.path.ismount(at), f"the mount {at}")

    def close(self) -> None:
        self.server.send_signal(signal.SIGCONT)
        for mount in self.mounts:
            subprocess.run(["umount", "-l", str(mount)], check=False, capture_output=True)
        for process in (*self._clients, self.server):
            process.kill()
            process.wait(HANGS_AFTER_S)


def start(*command: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


@contextmanager
def gluster_volume(root: Path) -> Iterator[Gluster]:
    """Serves a volume, and mounts it at `root/a` and `root/b`; skips where that cannot be."""
    if os.geteuid() != 0 or not shutil.which("glusterfsd") or not Path("/dev/fuse").exists():
        pytest.skip("needs root, glusterfs-server and FUSE")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    volume = Gluster(root, "127.0.0.1", port)
    try:
        for name in ("a", "b"):
            volume.mount(root / name)
        yield volume
    finally:
        volume.close()
