"""Figures as text, alike on the page, in `status` and in the demo: signs, units, and no minus before a zero."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from textwrap import shorten
from typing import TYPE_CHECKING

from pfo_fs.turns import share_of

if TYPE_CHECKING:
    from pfo_fs.store.bodies import IndexBody, RankProgress

_ENERGY = (("J", 1.0, 999.5), ("kJ", 1e3, 999.5e3), ("MJ", 1e6, 3.6e6), ("kWh", 3.6e6, math.inf))
_DURATION = (("s", 1.0, 120.0), ("min", 60.0, 7200.0), ("h", 3600.0, math.inf))


def signed_percent(share: float, digits: int = 1, error: float | None = None) -> str:
    """Returns a relative change as text, with its error if that is given: 0.0302 and 0.004 are "+3.0 % ± 0.4".

    What rounds to zero has a plus, never a minus. An error is at least one unit of the last digit.
    """
    text = f"{share * 100:+.{digits}f}"
    if not text.strip("+-0."):
        text = f"+{text[1:]}"
    text = f"{text.replace('-', '−')} %"
    return text if error is None else f"{text} ± {max(100 * error, 10.0**-digits):.{digits}f}"


def percent(share: float, digits: int = 2) -> str:
    """Returns a share as text without a plus: 0.0302 is "3.02 %"; what rounds to zero never has a minus."""
    text = f"{100 * share:.{digits}f} %"
    return text if text.strip("-0. %") else text.removeprefix("-")


def counted(number: int, what: str) -> str:
    """Returns a number of things: "1 step", "1,024 steps"."""
    return f"{number:,} {what}{'s' * (number != 1)}"


def energy_text(joules: float) -> str:
    """Returns an energy in J, kJ, MJ or kWh, with about three digits."""
    return _with_unit(joules, _ENERGY)


def duration_text(seconds: float) -> str:
    """Returns a duration in s, min or h, with about three digits."""
    return _with_unit(seconds, _DURATION)


def seconds_text(seconds: float) -> str:
    """Returns a time with five digits, because the compared times differ by parts of a percent."""
    return f"{seconds:#.5g} s"


def difference_text(more: float, text_of: Callable[[float], str]) -> str:
    """Returns a difference as text: 5.0 s is "5.00 s more", -5.0 s "5.00 s less"; what rounds to zero is neither."""
    text = text_of(abs(more))
    return text if text.startswith("0 ") else f"{text} {'more' if more > 0 else 'less'}"


def term_text(index: IndexBody, step: int = -1) -> str:
    """Says which ranks follow a schedule in which steps, and until when; empty: all ranks, always from `step` on."""
    turns = f"in turns ({shorten(' '.join(map(str, index.turns)), 20)})" if share_of(index.turns) < 1 else ""
    after = f"schedule {index.after}" if index.after >= 0 else "default clocks"
    if index.stays:
        after, turns = "all ranks in all steps", "" if 0 < index.until <= step else turns
    elif index.until <= step:
        return f"ended at step {index.until}; ranks follow {after}"
    until = f"until step {index.until}, then {after}" if index.until and (turns or not index.stays) else ""
    return " ".join(filter(None, (turns, until)))


def _with_unit(value: float, units: tuple[tuple[str, float, float], ...]) -> str:
    unit, factor = next((unit, factor) for unit, factor, limit in units if abs(value) < limit or limit == math.inf)
    amount = value / factor
    text = f"{amount:,.{0 if abs(amount) >= 99.95 else 1 if abs(amount) >= 9.995 else 2}f}"
    return f"{text if text.strip('-0.') else '0'} {unit}"


# ---- how the clocks of a job are switched, and what that costs

_WORTH_SAYING_S = 0.0001
"""Shorter times, in s, are not shown."""


def switching_text(ranks: Sequence[RankProgress]) -> str:
    """Returns a line about how clocks are switched: modes, and the longest time of each kind; empty if unknown."""
    known = [rank.switching for rank in ranks if rank.switching is not None]
    modes = sorted(Counter(switching.mode for switching in known).items())
    text = ", ".join(f"{mode} time ({counted(count, 'rank')})" for mode, count in modes)
    parts = [f"clocks switched at {text if len(modes) > 1 else f'{modes[0][0]} time'}"] if modes else []
    for words, times_s in (
        ("training launches {} ahead of the device", [switching.ahead_s for switching in known]),
        ("a call takes {}", [switching.call_s for switching in known]),
        ("waits up to {} for other GPUs", [switching.wait_s for switching in known]),
        ("clocks take effect up to {} later", [switching.latency_s for switching in known]),
    ):
        longest_s = max((time_s for time_s in times_s if time_s is not None), default=0.0)
        parts += [words.format(f"{1000 * longest_s:,.3g} ms")] if longest_s >= _WORTH_SAYING_S else []
    return "; ".join(parts)
