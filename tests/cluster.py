"""A cluster on one machine: hosts with a network of their own, each with its own mount of one GlusterFS volume.

Every host is a network namespace with a host name, an address, and a link to a bridge in the server's namespace. A link
can be cut and healed; the server can be stopped, killed and started again. All of it needs root.
"""

import os
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from gluster_volume import Gluster

_PORT = 24907
_SERVER_ADDRESS = "10.88.0.1"


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
        self.prefix = [*within(self.namespace), *named]


class Cluster:
    """The hosts, the server, and the links between them.

    Args:
        root: A folder for the volume, the mounts and the logs.
        hosts: Number of hosts.
    """

    def __init__(self, root: Path, hosts: int) -> None:
        self._root, self._tag = root, f"pfo{os.getpid()}"
        self._namespaces: list[str] = []
        self._switch = self._new_namespace("s")
        self._ip("-n", self._switch, "link", "add", "br0", "type", "bridge")
        self._ip("-n", self._switch, "addr", "add", f"{_SERVER_ADDRESS}/24", "dev", "br0")
        self._ip("-n", self._switch, "link", "set", "br0", "up")
        self.hosts = [self._new_host(number) for number in range(hosts)]
        self.volume = Gluster(root, _SERVER_ADDRESS, _PORT, within=within(self._switch))
        for host in self.hosts:
            self.volume.mount(host.mount, within=within(host.namespace))

    def cut(self, host: Host) -> None:
        """Cuts a host's link: nothing is refused, nothing answers."""
        self._ip("-n", self._switch, "link", "set", f"to-{host.name}", "down")

    def heal(self, host: Host) -> None:
        self._ip("-n", self._switch, "link", "set", f"to-{host.name}", "up")

    def hide_server(self, host: Host) -> None:
        """Drops what the server sends to a host, which still reaches the other hosts."""
        self._ip("-n", self._switch, "route", "add", "blackhole", f"{host.address}/32")

    def show_server(self, host: Host) -> None:
        self._ip("-n", self._switch, "route", "delete", "blackhole", f"{host.address}/32")

    def close(self) -> None:
        self.volume.close()
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

    @staticmethod
    def _ip(*words: str) -> None:
        subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


def within(namespace: str) -> list[str]:
    """The begin of a command that runs in a network namespace."""
    return ["nsenter", f"--net=/run/netns/{namespace}"]
