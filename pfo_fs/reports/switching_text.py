"""How the clocks of a job are switched, and what that costs, in one line for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from pfo_fs.store import bodies

_WORTH_SAYING_S = 0.0001
"""Shorter times are not shown."""


def switching_of(ranks: Sequence[bodies.RankProgress]) -> dict[str, Any]:
    """How clocks are switched: the number of ranks by mode, and the largest costs of a rank, in s."""
    found = [rank.switching for rank in ranks if rank.switching is not None]
    if not found:
        return {}
    worst: dict[str, Any] = {
        name: max((getattr(one, name) for one in found if getattr(one, name) is not None), default=None)
        for name in ("ahead_s", "call_s", "wait_s", "latency_s")
    }
    return {"modes": dict(Counter(one.mode for one in found)), **worst}


def switching_text(switching: dict[str, Any]) -> str:
    """One line about how clocks are switched."""
    modes = switching["modes"]
    text = ", ".join(f"{mode} time ({count} rank{'s' * (count > 1)})" for mode, count in sorted(modes.items()))
    if len(modes) == 1:
        text = f"{next(iter(modes))} time"
    parts = [f"clocks switched at {text}"]
    for name, words in (
        ("ahead_s", "training launches {} ahead of the device"),
        ("call_s", "a call takes {}"),
        ("wait_s", "waits up to {} for other GPUs"),
        ("latency_s", "the clock acts up to {} later"),
    ):
        if switching[name] is not None and switching[name] >= _WORTH_SAYING_S:
            parts.append(words.format(f"{1000 * switching[name]:,.3g} ms"))
    return "; ".join(parts)
