"""The single runs of instructions in a result."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from pfo_fs.models import ProfilingResult

Kind = tuple[int, str]
"""(stage, instruction)."""
RunInstruction = tuple[str, int, int]
"""(instruction, stage, MHz) of one instruction of an iteration; 0 MHz: the driver's default."""


class RunSample(NamedTuple):
    """One run of an instruction.

    Attributes:
        time_s: Its duration.
        energy_j: Its energy; 0.0 if it is not known.
        clock_mhz: Its mean clock, as far as it is known when clocks act; 0 if it is not.
    """

    time_s: float
    energy_j: float
    clock_mhz: int = 0


def steps_of(result: ProfilingResult) -> Sequence[int]:
    """Returns the step of each iteration, or its place in the window where steps are not known."""
    count = len(result.iter_time)
    return result.iter_step if len(result.iter_step) == count else range(count)


def numbered_iterations(
    result: ProfilingResult, ran: Sequence[RunInstruction]
) -> Iterator[tuple[int, list[RunSample]]]:
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
                RunSample(
                    lists[name][n],
                    energies[name][number][n] if has_energy else 0.0,
                    clocks[name][number][n] if has_clocks else 0,
                )
                for name, n in place
            ],
        )
