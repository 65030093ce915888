"""Sends and receives messages between the processes of one host.

One message is one packet of an AF_UNIX SOCK_SEQPACKET socket: MessagePack, compressed. Socket addresses are in Linux's
abstract namespace, so they leave no file behind, and no two processes listen at one name. The clock process imports
this module and must start fast, so the module imports nothing heavy.
"""

import errno
import hashlib
import os
import socket
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import Any

import msgspec

MAX_PACKET_BYTES = 190_000
"""The kernel sends packets up to this size with its usual limit on socket buffers, net.core.wmem_max."""
RECEIVE_BYTES = 1024 * 1024
MAX_MESSAGE_BYTES = 16 * 1024 * 1024
_BUFFER_BYTES = 4 * 1024 * 1024
"""Room for the largest message while the reader is busy."""
_REFUSED = (errno.EPERM, errno.EACCES, errno.ENOSYS)
"""Errors of calls that this host does not allow. They never pass: addresses are our own, and have no file modes."""
_NAMES = 8
"""Another user may have taken the first address: there are seven more."""


class CallRefused(OSError):
    """This host does not allow a system call that local sockets need, as under seccomp, and will not allow it later."""


@contextmanager
def refusals_named(call: str) -> Iterator[None]:
    """Raises `CallRefused`, with the name of the system call, where the call is not allowed."""
    try:
        yield
    except OSError as error:
        if error.errno not in _REFUSED:
            raise
        text = (
            f"{call}() is not allowed for local sockets on this host (seccomp, AppArmor or SELinux): {error.strerror}"
        )
        raise CallRefused(error.errno, text) from error


def encode(message: object) -> bytes:
    """Returns the packet of a message of `messages.py`, or of a dictionary; in text, `?` replaces what is not UTF-8."""
    try:
        data = msgspec.msgpack.encode(message)
    except UnicodeEncodeError:  # a name of a file, host or cluster that is not UTF-8
        data = msgspec.msgpack.encode(_readable(msgspec.to_builtins(message, builtin_types=(bytes,))))
    return zlib.compress(data, 1)


def _readable(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {_readable(key): _readable(item) for key, item in value.items()}
    return [_readable(item) for item in value] if isinstance(value, list | tuple) else value


def decode(packet: bytes, kind: Any) -> Any:
    """Returns the message in a packet.

    Raises:
        ValueError: The packet does not hold such a message, or unpacks to more than `MAX_MESSAGE_BYTES`.
    """
    unpacker = zlib.decompressobj()
    try:
        data = unpacker.decompress(packet, MAX_MESSAGE_BYTES)
        if unpacker.unconsumed_tail:
            raise ValueError("it is too large")
        return _decoder(kind).decode(data)
    except (zlib.error, ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise ValueError(f"not a message: {error}") from None


@lru_cache
def _decoder(kind: Any) -> msgspec.msgpack.Decoder[Any]:
    return msgspec.msgpack.Decoder(kind)


def receive(connection: socket.socket, flags: int = 0) -> bytes:
    """Returns the next packet, or `b""` if the other end is closed and all that it sent has been read.

    If the peer closes without having read everything, the kernel first reports a reset, once, and then the packets that
    the peer sent before.

    Raises:
        BlockingIOError: There is no packet yet, and `flags` has MSG_DONTWAIT.
        TimeoutError: No packet came within the socket's timeout.
        CallRefused: This host does not allow it.
    """
    while True:
        try:
            with refusals_named("recvfrom"):
                return connection.recv(RECEIVE_BYTES, flags)
        except ConnectionResetError:
            continue
        except (BlockingIOError, TimeoutError, CallRefused):
            raise
        except OSError:
            return b""


def names_of_helper(address: str, token: str) -> list[str]:
    """Returns the abstract addresses of a job's helper on this host, which listens at the first free one of them.

    Any user can take the address of a helper that has died. Only the ranks of the job can tell the next addresses
    before a helper listens there.
    """
    later = (hashlib.sha256(f"{token} {number}".encode()).hexdigest()[:24] for number in range(1, _NAMES))
    return [address, *(f"pfo-fs-{name}" for name in later)]


def connect_to_helper(names: list[str]) -> socket.socket:
    """Connects to the helper of this user that listens at one of these addresses, without waiting.

    Raises:
        OSError: No such helper listens there.
        CallRefused: This host does not allow it.
    """
    for name in names[:-1]:
        try:
            return connect(name)
        except CallRefused:
            raise
        except OSError:
            continue
    return connect(names[-1])


def listen(address: str) -> socket.socket:
    """Listens at an abstract address.

    Raises:
        OSError: EADDRINUSE: another process listens there.
        CallRefused: This host does not allow it.
    """
    server = _new_socket()
    try:
        with refusals_named("bind"):
            server.bind("\0" + address)
        with refusals_named("listen"):
            server.listen(512)
    except OSError:
        server.close()
        raise
    return server


def _new_socket() -> socket.socket:
    with refusals_named("socket"):
        return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)


def connect(address: str) -> socket.socket:
    """Connects to a listener of the same user, without waiting.

    Raises:
        OSError: No process listens at the address, or the process belongs to another user.
        CallRefused: This host does not allow it.
    """
    client = _new_socket()
    try:
        client.setblocking(False)
        with refusals_named("connect"):
            client.connect("\0" + address)
        check_peer(client)
        client.setblocking(True)
    except OSError:
        client.close()
        raise
    enlarge(client)
    return client


def enlarge(connection: socket.socket) -> None:
    """Requests a large send buffer; the kernel may give a smaller one, which suits all but the largest plans."""
    with suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)


def peer_of(connection: socket.socket) -> tuple[int, int]:
    """Returns process and user of the other side; process 0 is one of a namespace that this process does not see."""
    with refusals_named("getsockopt"):
        pid, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return pid, uid


def check_peer(connection: socket.socket) -> None:
    """Raises PermissionError unless the other side runs as this user: abstract addresses have no file modes."""
    _, uid = peer_of(connection)
    if uid != os.geteuid():
        raise PermissionError(f"the process at the other end belongs to user {uid}")
