"""What training, the process beside it that exchanges loads, and the process that decides tell each other.

Training writes a message in a microsecond; no side waits. Between hosts, all are numbers of 64 bits.
"""

from __future__ import annotations

import hmac
import struct
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from pfo_fs.loads.step_rows import FIXED, MOST_NUMBERS

_COUNT = struct.Struct("<H")
"""Of the numbers of a row, which follow it."""
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


def pack_row(row: Sequence[float]) -> bytes:
    """Returns the packet of a rank's row (`step_rows.make_row`)."""
    return _COUNT.pack(len(row)) + struct.pack(f"<{len(row)}d", *row)


def next_row(received: bytes) -> tuple[list[float], bytes] | None:
    """Returns the row with which these bytes begin, and the bytes after it; None while it is not complete.

    Raises:
        ValueError: It has fewer or more numbers than a row may have.
    """
    if len(received) < _COUNT.size:
        return None
    (count,) = _COUNT.unpack_from(received)
    if not FIXED <= count <= FIXED + MOST_NUMBERS:
        raise ValueError(f"a row of {count} numbers")
    end = _COUNT.size + 8 * count
    if len(received) < end:
        return None
    return list(struct.unpack_from(f"<{count}d", received, _COUNT.size)), received[end:]


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
    load: tuple[float, ...]
    ended: list[tuple[int, float]]

    def packed(self) -> bytes:
        """Returns the message, of at most `MOST_BYTES`."""
        return _ENCODER.encode(self)


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(StepBegun)
MOST_BYTES = 65_536
"""Each number takes at most 9 bytes, and there are at most `MOST_NUMBERS` in `load`."""


def step_begun(message: bytes) -> StepBegun:
    """Returns what a message says."""
    return _DECODER.decode(message)
