"""A GlusterFS volume on this machine, for benchmarks: one server, and two mounts, as two hosts have them."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import _common as common

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


@contextmanager
def mounted(root: Path) -> Iterator[tuple[Path, Path]]:
    """Two mounts of a new volume below `root`; needs root, FUSE and Debian's glusterfs-server.

    Raises:
        SystemExit: One of these is missing.
    """
    if os.geteuid() or not shutil.which("glusterfsd") or not Path("/dev/fuse").exists():
        raise SystemExit("GlusterFS needs root, glusterfs-server and FUSE here")
    for name in ("brick", "a", "b"):
        (root / name).mkdir(parents=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (root / "server.vol").write_text(_SERVER.format(root=root, port=port))
    (root / "client.vol").write_text(_CLIENT.format(port=port))

    def listening() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    def client(mount: Path) -> list[str]:
        log = ["-l", f"{mount}.log", "--entry-timeout=1", "--attribute-timeout=1"]
        return ["glusterfs", "--no-daemon", "-f", f"{root}/client.vol", *log, str(mount)]

    mounts = root / "a", root / "b"
    logs = ["-l", f"{root}/server.log", "-p", f"{root}/server.pid"]
    log = root / "output.log"
    with common.running(["glusterfsd", "--no-daemon", "-f", f"{root}/server.vol", *logs], log):
        common.wait_for(listening, "the GlusterFS server")
        with common.running(client(mounts[0]), log), common.running(client(mounts[1]), log):
            for mount in mounts:
                common.wait_for(lambda mount=mount: os.path.ismount(mount), f"the mount {mount}")
            try:
                yield mounts
            finally:
                for mount in mounts:
                    subprocess.run(["umount", "-l", str(mount)], check=False)
