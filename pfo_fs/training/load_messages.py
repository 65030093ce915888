"""What training, the process beside it that exchanges loads, and the process that decides tell each other.

All are numbers of 64 bits, in packets of a fixed length. Training writes a packet in a microsecond; no side waits.
"""

from __future__ import annotations

import hmac
import struct
from collections.abc import Sequence
from typing import NamedTuple

from pfo_fs.loads.step_rows import MOST_ENDED, MOST_FEATURES, WIDTH

_LOAD = MOST_FEATURES + 2
_STEP = struct.Struct(f"<qqqqd{_LOAD}dq{2 * MOST_ENDED}d")
STEP_BYTES = _STEP.size
ROW = struct.Struct(f"<{WIDTH}d")
"""A rank's row, with `step_rows` in its order."""
CLOCK = struct.Struct("<qq")
"""(step, MHz) of a rank's decided clock."""
TOKEN_BYTES = 32
HELLO = struct.Struct(f"<{TOKEN_BYTES}s{TOKEN_BYTES}sq")
"""(proof of the job's secret, a challenge, rank): a rank's answer to the challenge with which a connection begins."""
_NO_LOAD = (0.0,) * _LOAD


def proof(token: bytes, challenge: bytes, rank: int) -> bytes:
    """Returns what shows that its sender knows the job's secret, which itself is never sent.

    Args:
        token: The secret.
        challenge: What the other side has sent, another one each time.
        rank: The rank that proves it; -1: the process that decides.
    """
    return hmac.digest(token, challenge + rank.to_bytes(8, "little", signed=True), "sha256")


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
        load = (float(len(self.load)), *self.load, *_NO_LOAD)[:_LOAD]
        ended = self.ended[-MOST_ENDED:]
        flat = [number for one in ended for number in one] + [0.0] * (2 * (MOST_ENDED - len(ended)))
        return _STEP.pack(self.posts, self.runs, self.turn, self.mhz, self.at_s, *load, len(ended), *flat)

    @classmethod
    def unpacked(cls, packet: bytes) -> StepBegun:
        """Returns what a packet says."""
        posts, runs, turn, mhz, at_s, *rest = _STEP.unpack(packet)
        load = tuple(rest[1 : 1 + int(rest[0])])
        flat = rest[_LOAD + 1 : _LOAD + 1 + 2 * int(rest[_LOAD])]
        ended = [(int(step), seconds) for step, seconds in zip(flat[::2], flat[1::2], strict=True)]
        return cls(posts, runs, turn, mhz, at_s, load, ended)
