"""The training process's connection to its helper: every request has a deadline, and no call in a step waits."""

import ctypes
import errno
import logging
import socket
import time
from contextlib import suppress
from typing import Any, TypeVar, cast

from pfo_fs.errors import AlreadyClaimed, CoordinationError
from pfo_fs.ipc import messages, transport
from pfo_fs.ipc.messages import Message, ToTraining
from pfo_fs.ipc.process_end import in_forked_children
from pfo_fs.ipc.spawn import Child, hold_standard_fds, start_process
from pfo_fs.ipc.system_calls import OwnFile, held_recv

log = logging.getLogger("pfo_fs")

Reply = TypeVar("Reply", bound=Message)

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 2.0, 60.0
"""The pause between two starts of a helper by one rank grows from the first to the second while helpers keep dying."""
_LIVED_S = 60.0
"""A helper that has lived for longer than this does not count as a failed start."""
_SILENT_S = 1.0
"""An address at which no process has listened for this time is taken by a socket that is not ours."""
_OTHERS_LATER_S = 3.0
"""The other ranks first wait this long for rank 0, whose settings count, to start a helper; rank 0 tries every 2 s."""


class HelperClient:
    """A connection to a helper process, which is started if no process listens at its address yet.

    The process that starts a helper opens the address itself and passes the open socket to the helper. So it can send
    at once, and the helper reads when it is ready. Of ranks that try at once, one gets the address and starts a helper.

    Raises:
        CoordinationError: No helper could be reached in time.
        OSError: No helper can be started, or this host does not allow to reach one.
    """

    def __init__(
        self,
        address: str,
        shared_dir: str,
        token: str,
        rank: int,
        settings: dict[str, Any],
        *,
        deadline_s: float = 20.0,
    ) -> None:
        hold_standard_fds()
        self.process: Child | None = None
        self.lost = False
        self._warned = False
        self._names = transport.names_of_helper(address, token)
        self._silent_since_s: dict[str, float] = {}
        self._connected_s = self._start_after_s = 0.0
        self._pause_s = _FIRST_PAUSE_S
        self._starting = {"shared_dir": shared_dir, "token": token, "settings": settings}
        self._hello = messages.Hello(rank=rank, role="training", token=token)
        self._inbox: list[ToTraining] = []
        self._buffer = ctypes.create_string_buffer(transport.RECEIVE_BYTES)
        begin = time.monotonic()
        while not self._connect():
            if self.process is None:
                self._start()
                if self.process is not None:
                    continue
            if time.monotonic() - begin > deadline_s:
                raise CoordinationError(
                    f"no helper process for {shared_dir} answers after {deadline_s:.0f} s; is the file system up?"
                )
            time.sleep(0.01)
        in_forked_children(self.close)  # a data loader must not keep a helper alive, nor speak to it

    def _connect(self) -> bool:
        try:
            connection = transport.connect_to_helper(self._names)
        except transport.CallRefused:
            raise
        except OSError:
            return False
        self._socket = connection
        self._own_socket = OwnFile(connection.fileno())
        self._connected_s = time.monotonic()
        self._fd = connection.fileno()
        self.lost = False
        with transport.refusals_named("sendto"), suppress(ConnectionError):
            connection.send(transport.encode(self._hello), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        return True

    def revive(self, joining: list[Message]) -> bool:
        """Tries once, without waiting, to reach a new helper in place of a dead one, and sends it `joining`.

        What it has no room for stays in that list. Any rank of the host may start the new helper. If helpers die again
        and again, the pauses between starts grow.
        """
        self._own_socket.close_socket(self._socket)
        if not self._connect():
            self._start_when_due()
            if not self._connect():  # at once: the new one ends if its first rank does not come within a minute
                return False
        joining[:] = [message for message in joining if not self.send(message)]
        return True

    def _start_when_due(self) -> None:
        now_s = time.monotonic()
        if self._connected_s:  # the first try; rank 0 comes first, since its settings count
            if now_s - self._connected_s > _LIVED_S:
                self._pause_s = _FIRST_PAUSE_S
            self._start_after_s = max(self._start_after_s, now_s + (_OTHERS_LATER_S if self._hello.rank else 0.0))
            self._connected_s = 0.0
        if now_s >= self._start_after_s and (self.process is None or self.process.poll() is not None):
            self._start_after_s = now_s + self._pause_s
            self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
            self._start()

    def _start(self) -> None:
        """Starts a helper at the first free address, unless a process of this user listens at an address before it.

        Raises:
            OSError: The process cannot be started.
        """
        for name in self._names:
            try:
                server = transport.listen(name)
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
                if self._probe_address(name):
                    continue
                return
            with server:
                fds = {"server_fd": server.fileno()}
                self.process = start_process("pfo_fs.helper.process", self._starting, fds=fds, outlives=True)
            return

    def _probe_address(self, name: str) -> bool:
        """Returns whether another user has an address: this process is refused there, and not only for a moment."""
        try:
            transport.connect(name).close()
            self._silent_since_s.pop(name, None)
        except PermissionError:
            return True
        except OSError:  # another rank may just be about to listen there
            now_s = time.monotonic()
            return now_s - self._silent_since_s.setdefault(name, now_s) > _SILENT_S
        return False

    def how_it_ended(self, within_s: float = 0.0) -> str:
        """Returns, in brackets, what is known about the end of the helper, if this process has started it."""
        return "" if self.process is None else self.process.how_it_ended(within_s)

    def request(self, message: Message, reply: type[Reply], timeout_s: float) -> Reply:
        """Sends and waits for a reply of class `reply`; only while the optimizer is set up.

        Raises:
            AlreadyClaimed: The helper reports that another process has what this one requests.
            CoordinationError: The helper reports an error, has died, or does not answer in time.
        """
        self.send(message)
        answer, what = self.wait_for(reply, timeout_s), type(message).__name__
        if answer is None and self.lost:
            raise CoordinationError(f"the helper process ended before it answered {what}{self.how_it_ended(0.5)}")
        if answer is None:
            raise CoordinationError(f"no answer to {what} within {timeout_s:.0f} s; does the shared directory hang?")
        if isinstance(answer, messages.Refused):
            if answer.taken:
                raise AlreadyClaimed(errno.EEXIST, answer.message)
            raise CoordinationError(answer.message)
        return answer

    def wait_for(
        self, kind: type[Reply] | tuple[type[Reply], ...], timeout_s: float
    ) -> Reply | messages.Refused | None:
        """Waits for a message of class `kind` or a refusal; other messages are kept for `poll`."""
        kinds: tuple[type[Any], ...] = (*(kind if isinstance(kind, tuple) else (kind,)), messages.Refused)
        deadline = time.monotonic() + timeout_s
        for position, message in enumerate(self._inbox):
            if isinstance(message, kinds):
                del self._inbox[position]
                return cast("Reply | messages.Refused", message)
        while self._is_connected() and (left_s := deadline - time.monotonic()) > 0:
            self._socket.settimeout(left_s)
            try:
                packet = transport.receive(self._socket)
            except TimeoutError:
                break
            finally:
                self._socket.settimeout(None)
            if not packet:
                self.lost = True
                break
            received = self._decode(packet)
            if isinstance(received, kinds):
                return cast("Reply | messages.Refused", received)
            if received is not None:
                self._inbox.append(received)
        return None

    def poll(self) -> ToTraining | None:
        """Returns the next message if one is there, without waiting and without giving up the interpreter lock."""
        if self._inbox:
            return self._inbox.pop(0)
        if not self._is_connected():
            return None
        size = held_recv(self._fd, self._buffer, len(self._buffer), socket.MSG_DONTWAIT)
        if size > 0:
            return self._decode(self._buffer.raw[:size])
        elif size == 0 or ctypes.get_errno() not in (errno.EAGAIN, errno.EINTR, errno.ECONNRESET):
            self.lost = True
        return None

    def _is_connected(self) -> bool:
        """Returns whether the socket can be used: a program that closes all files may reuse its number."""
        self.lost = self.lost or not self._own_socket.seems_open()
        return not self.lost

    def _decode(self, packet: bytes) -> ToTraining | None:
        """Returns the message in a packet; None, and one warning, if it is not within the limits of `messages`."""
        try:
            message: ToTraining = transport.decode(packet, ToTraining)
            return message
        except ValueError as error:
            if not self._warned:
                self._warned = True
                log.warning("a message of the helper process is dropped: %s", error)
            return None

    def send(self, message: Message) -> bool:
        """Sends without waiting; returns whether the message was sent: False if the helper is dead or does not read."""
        if not self._is_connected():
            return False
        try:
            self._socket.send(transport.encode(message), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        except BlockingIOError:
            return False
        except OSError as error:
            self.lost = error.errno != errno.EMSGSIZE
            return False
        return True

    def close(self) -> None:
        """Ends the connection; the helper still writes what it has received."""
        self.lost = True
        self._own_socket.close_socket(self._socket)
