"""Puts the marks that training writes together into steps: which instructions ran, and from when to when."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from pfo_fs.device import shared_page

_MARKS_BETWEEN_YIELDS = 32
"""Some 50 us of work."""
_MAX_INSTRUCTIONS_OF_A_STEP = 65_535


class EndedStep(NamedTuple):
    """A step whose marks are complete, and whose energy may not be known yet.

    Attributes:
        step: The step's number.
        number: The number of the schedule in force; `shared_page.NO_NUMBER` if training has not marked any yet.
        begin_ns, end_ns: When the step began and ended, in monotonic ns.
        last_end_ns: When the step's last instruction ended.
        usable: Whether the step ran as scheduled and its instructions were marked.
        instructions: (place in the name table, begin in ns, end in ns), ordered by end.
    """

    step: int
    number: int
    begin_ns: int
    end_ns: int
    last_end_ns: int
    usable: bool
    instructions: list[tuple[int, int, int]]


class MarkedSteps:
    """Collects the steps of one rank from its marks.

    Attributes:
        ended: Complete steps, oldest first; the reader removes them.
    """

    def __init__(self) -> None:
        self.ended: deque[EndedStep] = deque()
        self._number = shared_page.NO_NUMBER
        self._step = -1
        self._begin_ns = -1  # -1: between steps
        self._last_end_ns = 0
        self._open: list[tuple[int, int]] = []
        self._instructions: list[tuple[int, int, int]] = []

    def take(self, marks: list[tuple[int, int]]) -> Iterator[None]:
        """Adds the next marks, (first word, code) each.

        Yields:
            None every 32 marks, so that the caller can do more urgent work.
        """
        for position, (first, code) in enumerate(marks):
            if position % _MARKS_BETWEEN_YIELDS == 0:
                yield None
            kind, value = code & 0xFF, code >> 8
            if kind == shared_page.BEGIN:
                if len(self._open) < _MAX_INSTRUCTIONS_OF_A_STEP:
                    self._open.append((value, first))
            elif kind == shared_page.END:
                self._end_instruction(value, first)
            elif kind == shared_page.STEP_BEGIN:
                self._step, self._begin_ns, self._last_end_ns = value, first, 0
                self._drop_instructions()
            elif kind == shared_page.NUMBER:
                self._number = first
            elif kind == shared_page.LAST_END:
                self._last_end_ns = first
            elif kind == shared_page.STEP_END and self._begin_ns >= 0:
                self._end_step(first, usable=value == 0)

    def lost(self) -> None:
        """Drops the step whose marks are being read: marks were lost, so it cannot be complete."""
        self._begin_ns = -1
        self._drop_instructions()

    def _drop_instructions(self) -> None:
        self._open.clear()
        self._instructions = []

    def _end_instruction(self, place: int, t_ns: int) -> None:
        """Pairs an instruction's end with the last open begin of the same name; an end without one is ignored."""
        for position in range(len(self._open) - 1, -1, -1):
            if self._open[position][0] == place:
                _, begin_ns = self._open.pop(position)
                if len(self._instructions) < _MAX_INSTRUCTIONS_OF_A_STEP:
                    self._instructions.append((place, begin_ns, t_ns))
                return

    def _end_step(self, end_ns: int, *, usable: bool) -> None:
        last_end_ns = self._last_end_ns or end_ns
        self.ended.append(
            EndedStep(self._step, self._number, self._begin_ns, end_ns, last_end_ns, usable, self._instructions)
        )
        self._begin_ns = -1
