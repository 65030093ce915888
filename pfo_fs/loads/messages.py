"""Messages between training, its clock process (which exchanges loads), and the process that decides.

Training writes a message in a microsecond; no side waits. Between hosts, all are numbers of 64 bits.
"""

import hmac
import struct
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

import msgspec

from pfo_fs.loads.step_rows import FIXED, MOST_NUMBERS

_HEAD = struct.Struct("<Hd")
"""(count, s): how many numbers the row behind it has; the rank's monotonic time when the row was sent."""
_CLOCK = struct.Struct("<qq")
"""(step, MHz) of a rank's decided clock."""
_SEAL_BYTES = 16
CLOCK_BYTES = _SEAL_BYTES + _CLOCK.size
TOKEN_BYTES = 32
HELLO = struct.Struct(f"<{TOKEN_BYTES}s{TOKEN_BYTES}sq")
"""(proof of the job's secret, a challenge, rank): a rank's answer to the challenge with which a connection begins."""


def proof(token: bytes, challenge: bytes, rank: int) -> bytes:
    """Returns what shows that its sender, a rank or the process that decides (-1), knows the job's secret.

    The secret itself is never sent; the challenge comes from the other side, a new one each time.
    """
    return hmac.digest(token, challenge + rank.to_bytes(8, "little", signed=True), "sha256")


class Seals:
    """Seals the packets of one direction of a connection: only a process that knows the job's secret can make them.

    `challenges` are that of the process that decides and that of the rank; `clocks`: whether packets go to the rank.
    """

    def __init__(self, token: bytes, challenges: tuple[bytes, bytes], rank: int, *, clocks: bool) -> None:
        self._key = hmac.digest(token, b"".join(challenges) + struct.pack("<q?", rank, clocks), "sha256")
        self._number = 0

    def next_seal(self, packet: bytes) -> bytes:
        """Returns the seal of the next packet."""
        self._number += 1
        return hmac.digest(self._key, self._number.to_bytes(8, "little") + packet, "sha256")[:_SEAL_BYTES]

    def check(self, packet: bytes) -> bytes:
        """Returns the next packet without the seal with which it begins.

        Raises:
            ValueError: It was made by a stranger.
        """
        if not hmac.compare_digest(packet[:_SEAL_BYTES], self.next_seal(packet[_SEAL_BYTES:])):
            raise ValueError("a packet that no rank of the job has sent")
        return packet[_SEAL_BYTES:]


def pack_row(row: Sequence[float], sent_s: float, seals: Seals) -> bytes:
    """Returns the packet of a rank's row (`step_rows.make_row`), sent at this monotonic time."""
    packet = _HEAD.pack(len(row), sent_s) + struct.pack(f"<{len(row)}d", *row)
    return seals.next_seal(packet) + packet


def next_row(received: bytes, seals: Seals) -> tuple[list[float], float, bytes] | None:
    """Returns the first row in these bytes, when it was sent, and the bytes after it; None while it is not complete.

    Raises:
        ValueError: It has fewer or more numbers than a row may have, or was made by a stranger.
    """
    begin = _SEAL_BYTES + _HEAD.size
    if len(received) < begin:
        return None
    count, sent_s = _HEAD.unpack_from(received, _SEAL_BYTES)
    if not FIXED <= count <= FIXED + MOST_NUMBERS:
        raise ValueError(f"a row of {count} numbers")
    end = begin + 8 * count
    if len(received) < end:
        return None
    seals.check(received[:end])
    return list(struct.unpack_from(f"<{count}d", received, begin)), sent_s, received[end:]


def pack_clock(step: int, mhz: int, seals: Seals) -> bytes:
    """Returns the packet of a rank's decided clock, in MHz."""
    packet = _CLOCK.pack(step, mhz)
    return seals.next_seal(packet) + packet


def clock_of(packet: bytes, seals: Seals) -> tuple[int, int]:
    """Returns the step and the clock, in MHz, in a packet.

    Raises:
        ValueError: It was made by a stranger.
    """
    step, mhz = _CLOCK.unpack(seals.check(packet))
    return step, mhz


class ReachDecider(NamedTuple):
    """What training tells its clock process once: the clocks that may be decided, and where the deciding process is."""

    rank: int
    offered_mhz: list[int]
    addresses: list[tuple[str, int]]
    token: bytes


class StepBegun(NamedTuple):
    """What training tells when a step begins.

    Attributes:
        posts: The step to which `load` belongs; -1: no load is told.
        runs: The step that begins.
        turn: The place of its clock in the page, if the clock can still change; else -1.
        mhz: The clock that it begins with; 0: the default clock; -1: one or several clocks that a schedule gives.
        at_s: Monotonic time of the begin, in s.
        ended: (step, s of this rank's own work, monotonic time of its begin in s) of steps that have ended since.
    """

    posts: int
    runs: int
    turn: int
    mhz: int
    at_s: float
    load: tuple[float, ...]
    ended: list[tuple[int, float, float]]


_ENCODER = msgspec.msgpack.Encoder()
MOST_BYTES = 65_536
"""Each number takes at most 9 bytes, and there are at most `MOST_NUMBERS` in `load`."""

Message = TypeVar("Message", ReachDecider, StepBegun)


def packed(message: ReachDecider | StepBegun) -> bytes:
    """Returns a message as a packet of at most `MOST_BYTES`."""
    return _ENCODER.encode(message)


def message_of(packet: bytes, kind: type[Message]) -> Message:
    """Returns the message in a packet.

    Raises:
        ValueError: It is not such a message.
    """
    return msgspec.msgpack.decode(packet, type=kind)
