"""Finds callbacks that training calls wrongly or not at all, and reports once what to do about it.

Wrong marks raise no error by themselves: the job would train at default clocks for ever, and no message would say why.
Instructions are counted in measured steps only, so that other steps cost nothing.
"""

from collections import Counter
from collections.abc import Callable, Iterable

from pfo_fs.device.shared_page import BEGIN, END

_STEPS = 3
"""The check reports a mistake once this many steps had it; wrong marks count only in steps in a row."""
_INSTRUCTIONS = 100
"""After this many instructions before the first step, the check reports that steps are not marked."""
_EVALUATIONS = 10
"""Instructions between two steps may be an evaluation, but not before this many steps in a row."""
_RIGHT = "call on_step_begin() once before each iteration's first instruction and on_step_end() once after its last one"


class MarkCheck:
    """Checks marks, and calls `report` once, with a text, if something is wrong; `report` may raise an error."""

    def __init__(self, report: Callable[[str], None]) -> None:
        self._done = False
        self._report = report
        self._wrong_steps = self._open_steps = self._extra_ends = 0
        self._outside = self._outside_steps = self._steps_begun = 0
        self._was_open = False

    def instruction_outside(self) -> None:
        """Notes that an instruction began outside a step; before the first step, that is a mistake."""
        self._outside += 1
        if not self._steps_begun and self._outside >= _INSTRUCTIONS:
            self._say(f"instructions are marked but steps are not: {_RIGHT}")

    def step_begins(self, *, left_open: bool) -> None:
        """Notes that a step begins; `left_open`: whether the step before is still open."""
        self._steps_begun += 1
        self._outside_steps, self._outside = self._outside_steps + 1 if self._outside else 0, 0
        if self._outside_steps >= _EVALUATIONS:
            self._say(f"instructions were marked outside of a step, before each of {_EVALUATIONS} steps: {_RIGHT}")
        if not (left_open or self._was_open):
            self._open_steps = 0
        self._was_open = left_open
        self._open_steps += left_open
        if self._open_steps >= _STEPS:
            self._say(f"on_step_begin was called {_STEPS} times without on_step_end in between: {_RIGHT}")

    def step_ends_outside(self) -> None:
        """Notes that a step ends, but none has begun."""
        self._extra_ends += 1
        if self._extra_ends >= _STEPS:
            self._say(f"on_step_end was called {_STEPS} times without on_step_begin before it: {_RIGHT}")

    def step_ended(self, codes: Iterable[int], name_of: Callable[[int], str]) -> None:
        """Checks a complete step by the codes of its marks."""
        if self._done:
            return
        counts = Counter(codes)
        began, ended = ({code >> 8: n for code, n in counts.items() if code & 0xFF == kind} for kind in (BEGIN, END))
        self._wrong_steps = 0 if began and began == ended else self._wrong_steps + 1
        if self._wrong_steps < _STEPS:
            return
        counted = [(name_of(place), began.get(place, 0), ended.get(place, 0)) for place in sorted({*began, *ended})]
        shown = ", ".join(f"{name!r} began {n} times and ended {m} times" for name, n, m in counted if n != m)
        self._say(
            f"the marks of instructions do not match ({shown}): call on_instruction_end with the name that "
            "on_instruction_begin was called with, once for each"
            if shown
            else f"no instruction was marked in {_STEPS} steps: call on_instruction_begin(name) before and "
            "on_instruction_end(name) after each forward and backward of a micro-batch, within the step"
        )

    def _say(self, text: str) -> None:
        if not self._done:
            self._done = True
            self._report(f"{text}. Until then clocks may stay at their default, and measurements may be missing")
