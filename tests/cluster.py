"""A cluster on one machine: hosts with a network of their own, each with its own mount of one GlusterFS volume.

Every host is a network namespace with a host name, an address, and a link to a bridge in the server's namespace. A link
can be cut and healed; the server can be stopped, killed and started again. All of it needs root.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from running import HANGS_AFTER_S

_PORT = 24907
_SERVER_ADDRESS = "10.88.0.1"
_SERVER = f"""
volume posix
  type storage/posix
  option directory {{root}}/brick
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
  option transport.socket.bind-address {_SERVER_ADDRESS}
  option transport.socket.listen-port {_PORT}
  option auth.addr.brick.allow 10.88.0.*
  subvolumes brick
end-volume
"""
_CLIENT = f"""
volume client
  type protocol/client
  option transport-type tcp
  option remote-host {_SERVER_ADDRESS}
  option remote-port {_PORT}
  option remote-subvolume brick
  option ping-timeout {{ping_timeout_s}}
end-volume
"""
Wait = Callable[..., Any]


def missing() -> str:
    """What this machine lacks for a cluster; empty if nothing."""
    lacking = [name for name in ("glusterfsd", "glusterfs", "ip", "nsenter", "unshare") if not shutil.which(name)]
    if os.geteuid() != 0 or not Path("/dev/fuse").exists():
        lacking.append("root with FUSE")
    return ", ".join(lacking)


@dataclass
class Host:
    """A host of a cluster.

    Attributes:
        name: Its host name.
        namespace: Its network namespace.
        address: Its address in the cluster's network.
        mount: Where the volume is mounted for it.
        environment: Variables of its processes: each host has its own run folder and its own simulated GPUs.
    """

    name: str
    namespace: str
    address: str
    mount: Path
    environment: dict[str, str]
    prefix: list[str] = field(init=False)

    def __post_init__(self) -> None:
        # Each program replaces the one before, so that the process that is started is the one that is wanted.
        named = ["unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', self.name]
        self.prefix = ["nsenter", f"--net=/run/netns/{self.namespace}", *named]


class Cluster:
    """The hosts, the server, and the links between them.

    Args:
        root: A folder for the volume, the mounts and the logs.
        hosts: Number of hosts.
        wait_for: Waits for a condition.
        ping_timeout_s: A client takes the server for lost after so many seconds without an answer.
    """

    def __init__(self, root: Path, hosts: int, wait_for: Wait, ping_timeout_s: int = 42) -> None:
        self._root, self._wait_for = root, wait_for
        self._tag = f"pfo{os.getpid()}"
        self._namespaces: list[str] = []
        self._clients: list[subprocess.Popen[bytes]] = []
        (root / "brick").mkdir(parents=True)
        (root / "server.vol").write_text(_SERVER.format(root=root))
        (root / "client.vol").write_text(_CLIENT.format(ping_timeout_s=ping_timeout_s))
        self._switch = self._new_namespace("s")
        self._ip("-n", self._switch, "link", "add", "br0", "type", "bridge")
        self._ip("-n", self._switch, "addr", "add", f"{_SERVER_ADDRESS}/24", "dev", "br0")
        self._ip("-n", self._switch, "link", "set", "br0", "up")
        self.hosts = [self._new_host(number) for number in range(hosts)]
        self.server = self._serve()
        for host in self.hosts:
            self._mount(host)

    def cut(self, host: Host) -> None:
        """Cuts a host's link: nothing is refused, nothing answers."""
        self._ip("-n", self._switch, "link", "set", f"to-{host.name}", "down")

    def heal(self, host: Host) -> None:
        """Mends a host's link."""
        self._ip("-n", self._switch, "link", "set", f"to-{host.name}", "up")

    def hide_server(self, host: Host) -> None:
        """Drops what the server sends to a host, which still reaches the other hosts."""
        self._ip("-n", self._switch, "route", "add", "blackhole", f"{host.address}/32")

    def show_server(self, host: Host) -> None:
        """Ends what `hide_server` did."""
        self._ip("-n", self._switch, "route", "delete", "blackhole", f"{host.address}/32")

    def restart_server(self) -> None:
        """Starts the server again after it was killed."""
        self.server.wait(HANGS_AFTER_S)
        self.server = self._serve()

    def close(self) -> None:
        """Ends everything that the cluster has started."""
        with suppress(ProcessLookupError):
            self.server.send_signal(signal.SIGCONT)
        for host in self.hosts:
            subprocess.run(["umount", "-l", str(host.mount)], check=False, capture_output=True)
        for process in (*self._clients, self.server):
            process.kill()
            process.wait(HANGS_AFTER_S)
        for name in self._namespaces:
            subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)

    def _new_namespace(self, name: str) -> str:
        namespace = f"{self._tag}-{name}"
        self._ip("netns", "add", namespace)
        self._namespaces.append(namespace)
        self._ip("-n", namespace, "link", "set", "lo", "up")
        return namespace

    def _new_host(self, number: int) -> Host:
        name, address = f"host{number}", f"10.88.0.{10 + number}"
        namespace = self._new_namespace(name)
        peer = ["peer", "name", f"to-{name}", "netns", self._switch]
        self._ip("-n", namespace, "link", "add", "eth0", "type", "veth", *peer)
        self._ip("-n", self._switch, "link", "set", f"to-{name}", "master", "br0", "up")
        self._ip("-n", namespace, "addr", "add", f"{address}/24", "dev", "eth0")
        self._ip("-n", namespace, "link", "set", "eth0", "up")
        folders = {kind: self._root / name / kind for kind in ("mount", "sim", "run")}
        for folder in folders.values():
            folder.mkdir(parents=True, mode=0o700)
        environment = {"PFO_FS_SIM_DIR": str(folders["sim"]), "PFO_FS_RUN_DIR": str(folders["run"])}
        environment["GLOO_SOCKET_IFNAME"] = "eth0"
        return Host(name, namespace, address, folders["mount"], environment)

    def _serve(self) -> subprocess.Popen[bytes]:
        files = ["-f", f"{self._root}/server.vol", "-l", f"{self._root}/server.log", "-p", f"{self._root}/server.pid"]
        server = self._in(self._switch, ["glusterfsd", "--no-daemon", *files])
        probe = [sys.executable, "-c", f"import socket; socket.create_connection(('{_SERVER_ADDRESS}', {_PORT}), 1)"]

        def listening() -> bool:
            return self._in(self._switch, probe).wait() == 0

        self._wait_for(listening, "the GlusterFS server")
        return server

    def _mount(self, host: Host) -> None:
        log = ["-l", f"{host.mount.parent}/client.log", "--entry-timeout=1", "--attribute-timeout=1"]
        command = ["glusterfs", "--no-daemon", "-f", f"{self._root}/client.vol", *log, str(host.mount)]
        self._clients.append(self._in(host.namespace, command))
        self._wait_for(lambda: os.path.ismount(host.mount), f"the mount of {host.name}")

    @staticmethod
    def _in(namespace: str, command: Iterable[str]) -> subprocess.Popen[bytes]:
        silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        return subprocess.Popen(["nsenter", f"--net=/run/netns/{namespace}", *command], **silent)  # type: ignore[call-overload,no-any-return]

    @staticmethod
    def _ip(*words: str) -> None:
        subprocess.run(["ip", *words], check=True, capture_output=True, text=True)
