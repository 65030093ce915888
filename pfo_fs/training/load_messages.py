"""What training, the process beside it that exchanges loads, and the process that decides tell each other.

All are numbers of 64 bits. Training writes a packet in a microsecond; no side waits. A packet with loads has a fixed
part, which says how many numbers of loads follow.
"""

from __future__ import annotations

import hmac
import struct
from collections.abc import Sequence
from typing import NamedTuple

from pfo_fs.loads.step_rows import FIXED, MOST_ENDED, MOST_NUMBERS

_STEP = struct.Struct(f"<Hqqqqdq{2 * MOST_ENDED}d")
STEP_BYTES = _STEP.size
_ROW = struct.Struct(f"<H{FIXED}d")
ROW_BYTES = _ROW.size
_COUNT = struct.Struct("<H")
"""Of numbers of loads; each packet with loads begins with it."""
CLOCK = struct.Struct("<qq")
"""(step, MHz) of a rank's decided clock."""
TOKEN_BYTES = 32
HELLO = struct.Struct(f"<{TOKEN_BYTES}s{TOKEN_BYTES}sq")
"""(proof of the job's secret, a challenge, rank): a rank's answer to the challenge with which a connection begins."""


def proof(token: bytes, challenge: bytes, rank: int) -> bytes:
    """Returns what shows that its sender knows the job's secret, which itself is never sent.

    Args:
        token: The secret.
        challenge: What the other side has sent, another one each time.
        rank: The rank that proves it; -1: the process that decides.
    """
    return hmac.digest(token, challenge + rank.to_bytes(8, "little", signed=True), "sha256")


def loads_bytes(packet: bytes) -> int:
    """Returns how many bytes of loads follow the fixed part of a packet.

    Raises:
        ValueError: More than a packet may have.
    """
    (count,) = _COUNT.unpack_from(packet)
    if count > MOST_NUMBERS:
        raise ValueError(f"a packet with {count} numbers of loads")
    return 8 * int(count)


def pack_row(row: Sequence[float]) -> bytes:
    """Returns the packet of a rank's row (`step_rows.make_row`)."""
    return _ROW.pack(len(row) - FIXED, *row[:FIXED]) + _numbers(row[FIXED:])


def unpack_row(packet: bytes) -> list[float]:
    """Returns the row of a whole packet."""
    return [*_ROW.unpack_from(packet)[1:], *_loads_in(packet[ROW_BYTES:])]


def _numbers(load: Sequence[float]) -> bytes:
    return struct.pack(f"<{len(load)}d", *load)


def _loads_in(packet: bytes) -> tuple[float, ...]:
    return struct.unpack(f"<{len(packet) // 8}d", packet)


class StepBegun(NamedTuple):
    """What training tells when a step begins.

    Attributes:
        posts: The step whose load this is; -1: none is told.
        runs: The step that begins.
        turn: The place of its clock in the page, where that can still change; else -1.
        mhz: The clock that it begins with; 0 is the default, -1 one or several that a schedule gives.
        at_s: The monotonic time, in s.
        load: `load_of_step`.
        ended: (step, time of this rank's own work in s) of steps that have ended since the last message.
    """

    posts: int
    runs: int
    turn: int
    mhz: int
    at_s: float
    load: Sequence[float]
    ended: Sequence[tuple[int, float]]

    def packed(self) -> bytes:
        """Returns the packet."""
        ended = self.ended[-MOST_ENDED:]
        flat = [number for one in ended for number in one] + [0.0] * (2 * (MOST_ENDED - len(ended)))
        fixed = (len(self.load), self.posts, self.runs, self.turn, self.mhz, self.at_s, len(ended), *flat)
        return _STEP.pack(*fixed) + _numbers(self.load)

    @classmethod
    def unpacked(cls, packet: bytes) -> StepBegun:
        """Returns what a whole packet says."""
        _, posts, runs, turn, mhz, at_s, count, *flat = _STEP.unpack_from(packet)
        flat = flat[: 2 * count]
        ended = [(int(step), seconds) for step, seconds in zip(flat[::2], flat[1::2], strict=True)]
        return cls(posts, runs, turn, mhz, at_s, _loads_in(packet[STEP_BYTES:]), ended)
