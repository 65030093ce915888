"""Starts the processes that exchange loads, and writes to the one beside this training process."""

from __future__ import annotations

import os
import socket
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeAlias

from pfo_fs.ipc import held_calls
from pfo_fs.ipc.optional_calls import open_memory_file
from pfo_fs.ipc.own_file import OwnFile
from pfo_fs.ipc.process_end import in_forked_children
from pfo_fs.ipc.spawn import start_process
from pfo_fs.loads_known import LoadsKnown
from pfo_fs.training.load_decider import read_state
from pfo_fs.training.load_messages import StepBegun

_AT_ONCE = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL

_BACKLOG = 4096
_TOLD_BYTES = 4096

Orders: TypeAlias = Sequence[Sequence[tuple[int, str, int]]]
"""(stage, name, micro-batch) of the instructions of each rank of a pipeline, in their order."""


class _Beside:
    """A process that ends when this object closes its end of a socket pair, or this process ends."""

    def __init__(self, module: str, given: Mapping[str, Any], fds: Mapping[str, int]) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = start_process(module, given, fds={**fds, "socket_fd": theirs.fileno()})
        ours.setblocking(False)
        self.fd = ours.detach()
        self._file = OwnFile(self.fd)
        weakref.finalize(self, self._file.close).atexit = False
        in_forked_children(self._file.close)

    def close(self) -> None:
        """Ends the process; does not wait."""
        self._file.close()


def _listening() -> socket.socket:
    """Returns a socket on a free port, for IPv4 and, where there is one, IPv6."""
    if socket.has_dualstack_ipv6():
        with suppress(OSError):
            return socket.create_server(("::", 0), family=socket.AF_INET6, backlog=_BACKLOG, dualstack_ipv6=True)
    return socket.create_server(("", 0), backlog=_BACKLOG)


class LoadDecider(_Beside):
    """Rank 0's process that decides.

    Args:
        places, offered_mhz, change_s, lost_time: As for `LoadCoordinator`.
        orders: The instructions of each rank of a pipeline, (stage, name, micro-batch); empty without one.
        token: The job's secret, as 64 hexadecimal digits.

    Raises:
        OSError: The process cannot be started, or no port be opened.
    """

    def __init__(
        self,
        places: Sequence[tuple[int, int]],
        offered_mhz: Sequence[int],
        change_s: float,
        lost_time: float,
        orders: Orders,
        token: str,
    ) -> None:
        given = {
            "places": [*places],
            "offered_mhz": [*offered_mhz],
            "change_s": change_s,
            "lost_time": lost_time,
            "orders": [[tuple(each) for each in order] for order in orders],
        }
        self._state_fd = open_memory_file("pfo-fs-loads")
        weakref.finalize(self, OwnFile(self._state_fd).close).atexit = False
        with _listening() as listening:
            self.port: int = listening.getsockname()[1]
            fds = {"listening_fd": listening.fileno(), "state_fd": self._state_fd}
            super().__init__("pfo_fs.training.load_decider", {**given, "token": token}, fds)

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """Where the ranks may reach it, the likeliest first; what else answers there cannot show the job's secret."""
        hosts = [os.environ.get("MASTER_ADDR", ""), socket.gethostname(), "127.0.0.1"]
        return [(host, self.port) for host in dict.fromkeys(hosts) if host]

    @property
    def state(self) -> LoadsKnown | None:
        """What is known; None before the first step."""
        return read_state(self._state_fd)


class LoadLink(_Beside):
    """The process beside this rank's training.

    Args:
        rank: Global rank.
        offered_mhz: The clocks that may be decided.
        addresses: Where the process that decides may be reached.
        token: The job's secret.
        fds: Page and doorbell of the clock process.

    Raises:
        OSError: The process cannot be started.
    """

    def __init__(
        self,
        rank: int,
        offered_mhz: Sequence[int],
        addresses: Sequence[tuple[str, int]],
        token: str,
        fds: Mapping[str, int],
    ) -> None:
        given = {"rank": rank, "offered_mhz": [*offered_mhz], "addresses": addresses, "token": token}
        super().__init__("pfo_fs.training.load_client", given, fds)
        self.works = True

    def tell(self, begun: StepBegun) -> None:
        """Sends what training tells; does not wait, and keeps the interpreter lock."""
        packet = begun.packed()
        if held_calls.send(self.fd, packet, len(packet), _AT_ONCE) != len(packet):
            self.works = False  # it has ended, or does not read

    @property
    def told(self) -> str:
        """What the process says of its search for the one that decides; empty if nothing is new."""
        with suppress(OSError):
            if self._file.is_open():
                return os.read(self.fd, _TOLD_BYTES).decode("utf-8", "replace")
        return ""
