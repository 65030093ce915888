"""Messages between the processes of one host: a training process, its clock process, and the host's helper.

One message is one packet of an AF_UNIX SOCK_SEQPACKET socket: a JSON object, compressed. Sockets live in Linux's
abstract namespace, so they leave no file behind, and nobody has one name twice. Standard library only: the clock
process starts from here.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import weakref
import zlib
from contextlib import suppress
from typing import Any

MAX_PACKET_BYTES = 190_000
"""What the kernel lets through with its usual limit on socket buffers, net.core.wmem_max."""
RECEIVE_BYTES = 1024 * 1024
MAX_MESSAGE_BYTES = 16 * 1024 * 1024
_BUFFER_BYTES = 4 * 1024 * 1024

_not_for_children: weakref.WeakSet[socket.socket] = weakref.WeakSet()

Message = dict[str, Any]


def encode(message: Message) -> bytes:
    """Returns the packet of a message."""
    return zlib.compress(json.dumps(message, separators=(",", ":")).encode(), 1)


def decode(packet: bytes) -> Message:
    """Returns the message of a packet.

    Raises:
        ValueError: It is no packet of ours, or larger than `MAX_MESSAGE_BYTES`.
    """
    unpacker = zlib.decompressobj()
    try:
        text = unpacker.decompress(packet, MAX_MESSAGE_BYTES)
        if unpacker.unconsumed_tail:
            raise ValueError("it is too large")
        message = json.loads(text)
    except (zlib.error, ValueError, RecursionError) as error:
        raise ValueError(f"no message: {error}") from None
    if not isinstance(message, dict):
        raise ValueError("no message: no object")
    return message


def receive(connection: socket.socket, flags: int = 0) -> bytes:
    """Returns the next packet, and none, `b""`, if the other end is gone and all that it sent is read.

    A peer that closes without having read everything counts as a reset. The kernel tells that first, once; what the
    peer sent before is still there behind it.

    Raises:
        BlockingIOError: There is nothing yet, and `flags` says not to wait.
        TimeoutError: There is nothing within the socket's timeout.
    """
    while True:
        try:
            return connection.recv(RECEIVE_BYTES, flags)
        except ConnectionResetError:
            continue
        except (BlockingIOError, TimeoutError):
            raise
        except OSError:
            return b""


def listen(address: str) -> socket.socket:
    """Listens at an abstract address.

    Raises:
        OSError: EADDRINUSE: another process has it.
    """
    server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
    server.bind("\0" + address)
    server.listen(512)
    return server


def connect(address: str) -> socket.socket:
    """Connects to a listener of the same user, at once or not at all.

    Raises:
        OSError: Nobody listens, or somebody else's process does.
    """
    client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
    try:
        client.setblocking(False)
        client.connect("\0" + address)
        check_peer(client)
        client.setblocking(True)
    except OSError:
        client.close()
        raise
    enlarge(client)
    return client


def not_for_children(connection: socket.socket) -> None:
    """Closes the socket in every child that this process forks: a data loader must not keep a helper alive."""
    _not_for_children.add(connection)


def _close_in_forked_child() -> None:
    for connection in list(_not_for_children):
        with suppress(OSError):
            os.close(connection.detach())


os.register_at_fork(after_in_child=_close_in_forked_child)


def enlarge(connection: socket.socket) -> None:
    """Asks for large buffers; the kernel gives what it allows."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)


def check_peer(connection: socket.socket) -> None:
    """Raises PermissionError unless the other side runs as this user: abstract addresses have no file modes."""
    _, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    if uid != os.geteuid():
        raise PermissionError(f"the process at the other end belongs to user {uid}")
