"""The single runs of instructions in a result, sorted by whether the clock of the plan had acted."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from typing import NamedTuple

from pfo_fs.models import ProfilingResult

Kind = tuple[int, str]
"""(stage, instruction)."""
RunInstruction = tuple[str, int, int]
"""(instruction, stage, MHz) of one instruction of an iteration; 0 MHz: the driver's default."""

_CLOCK_SETTLES_WITHIN_S, _UNKNOWN_SETTLES_WITHIN_S = 0.03, 0.1
"""Instructions that begin within this time after a change of the clock may still have run at the old clock; the second
number holds for clocks of which the clock process does not know when they act."""
LATE_S, _LATE_IF_KNOWN_S, _LATE_IF_UNKNOWN_S = 0.010, 0.003, 0.05
"""For about this long such an instruction ran at the old clock; the second number holds where the clock process knows
when the clock acts, the third where it could know but does not."""
_SAME_CLOCK, _MOST_OFF = 0.001, 0.02
"""Relative: a mean clock that differs by less from that of the plan is the same; a run whose mean clock differs by more
than the second number is left out."""


class Run(NamedTuple):
    """One run of an instruction.

    Attributes:
        time_s: Its duration.
        energy_j: Its energy; 0.0 if it is not known.
        clock_mhz: Its mean clock, as far as it is known when clocks act; 0 if it is not.
    """

    time_s: float
    energy_j: float
    clock_mhz: int = 0


class SortedRuns(NamedTuple):
    """The runs of one result.

    Attributes:
        everything: For each kind and clock of the plan in MHz, the runs at about this clock.
        settled: Of these, the runs at the clock itself from begin to end.
        wrong_s: For each of the others, by how much its duration may be that of another clock, in s.
        changed: Where no clock process sees the device, the durations in s of instructions with which the clock
            changes, by (kind, MHz before, MHz).
    """

    everything: dict[tuple[Kind, int], list[Run]]
    settled: dict[tuple[Kind, int], list[Run]]
    wrong_s: dict[tuple[Kind, int], list[float]]
    changed: dict[tuple[Kind, int, int], list[float]]


def sort_runs(result: ProfilingResult, ran: Sequence[RunInstruction], top_mhz: int) -> SortedRuns:
    """Returns the runs of one rank; iterations that ran something else than `ran` are left out.

    Args:
        result: What was measured.
        ran: The rank's instructions, in order, with their clocks.
        top_mhz: The default clock, as far as it is known.
    """
    known, can_know = _known_clocks(result), result.switching is not None and result.switching.mode != "launch"
    sees_clocks = can_know and bool(result.clock_breakdown)
    found = SortedRuns({}, {}, {}, {})
    since_s, before_mhz, from_mhz = 0.0, 0, 0
    stayed_mhz = 0  # the clock at which the last iteration ended, and at which this one begins if it stays
    for iteration in iterations_of(result, ran):
        if not (stayed_mhz and stayed_mhz == ran[0][2] == iteration[0].clock_mhz):
            since_s, before_mhz, from_mhz = 0.0, 0, 0  # it begins at the default clock
        for (name, stage, mhz), run in zip(ran, iteration, strict=True):
            key = (stage, name), mhz
            if mhz != before_mhz:
                since_s, before_mhz, from_mhz = 0.0, mhz, before_mhz or top_mhz
                if mhz and not can_know:
                    found.changed.setdefault(((stage, name), from_mhz, mhz), []).append(run.time_s)
            settles_s, late_s = _settling(mhz in known, can_know, run.time_s)
            off = abs((run.clock_mhz or top_mhz) / mhz - 1) if mhz and sees_clocks else 0.0
            if off <= _MOST_OFF:  # otherwise there was no time for the change, or the next clock was requested early
                found.everything.setdefault(key, []).append(run)
                if mhz == 0 or (since_s >= settles_s and off <= _SAME_CLOCK):
                    found.settled.setdefault(key, []).append(run)
                else:
                    old_s = min(run.time_s, max(0.0, late_s - since_s))  # it ran at the old clock for so long at most
                    share = 1 - min(mhz, from_mhz) / max(mhz, from_mhz)
                    found.wrong_s.setdefault(key, []).append(old_s * share + off * run.time_s)
            since_s += run.time_s
        stayed_mhz = before_mhz if sees_clocks and before_mhz and iteration[-1].clock_mhz == before_mhz else 0
    return found


def _settling(is_known: bool, can_know: bool, run_s: float) -> tuple[float, float]:
    """Returns after which time a clock has acted, and for how long an instruction before that ran at the old one, in s.

    Args:
        is_known: Whether the clock process knows when the clock acts.
        can_know: Whether it could.
        run_s: The duration of the instruction.
    """
    if is_known:
        return min(run_s, _LATE_IF_KNOWN_S), _LATE_IF_KNOWN_S
    if can_know:
        return _UNKNOWN_SETTLES_WITHIN_S, _LATE_IF_UNKNOWN_S
    return min(run_s, _CLOCK_SETTLES_WITHIN_S), LATE_S


def _known_clocks(result: ProfilingResult) -> Container[int]:
    """Returns the clocks that a rank's clock process requests at the right moment."""
    switching = result.switching
    return () if switching is None or switching.mode == "launch" else switching.latencies_s


def steps_of(result: ProfilingResult) -> Sequence[int]:
    """Returns the step of each iteration; from an older release, its place in the window."""
    count = len(result.iter_time)
    return result.iter_step if len(result.iter_step) == count else range(count)


def iterations_of(result: ProfilingResult, ran: Sequence[RunInstruction]) -> Iterator[list[Run]]:
    """Yields, for each iteration that ran `ran`, the time (s) and energy (J) of each instruction in order."""
    for _, runs in numbered_iterations(result, ran):
        yield runs


def numbered_iterations(result: ProfilingResult, ran: Sequence[RunInstruction]) -> Iterator[tuple[int, list[Run]]]:
    """Yields the place in the window, and the runs, of each iteration that ran `ran`."""
    counts: dict[str, int] = {}
    place = []
    for name, _, _ in ran:
        place.append((name, counts.get(name, 0)))
        counts[name] = counts.get(name, 0) + 1
    for number in range(len(result.iter_time)):
        lists = {name: (rows[number] if number < len(rows) else []) for name, rows in result.time_breakdown.items()}
        if {name: len(values) for name, values in lists.items() if values} != counts:
            continue
        energies = {name: result.energy_breakdown.get(name, []) for name in counts}
        clocks = {name: result.clock_breakdown.get(name, []) for name in counts}
        has_energy, has_clocks = (
            all(number < len(rows) and len(rows[number]) == counts[name] for name, rows in table.items())
            for table in (energies, clocks)
        )
        yield (
            number,
            [
                Run(
                    lists[name][n],
                    energies[name][number][n] if has_energy else 0.0,
                    clocks[name][number][n] if has_clocks else 0,
                )
                for name, n in place
            ],
        )
