"""Gathers what the ranks of the host measured under a schedule, so that it is written to one file."""

from __future__ import annotations

from pfo_fs.helper.operations import WriteResults
from pfo_fs.store.bodies import ResultBody

_WITHIN_S = 0.25
"""Ranks measure the same iterations, so their results come at the same time. Those that miss this are written later."""


class ResultGatherer:
    """The results that wait for those of other ranks, by the number of the schedule."""

    def __init__(self) -> None:
        self._waiting: dict[int, dict[int, ResultBody]] = {}
        self._until_s: dict[int, float] = {}

    @property
    def is_empty(self) -> bool:
        """Whether no result waits."""
        return not self._waiting

    def add(self, number: int, body: ResultBody, now_s: float) -> None:
        """Adds what a rank measured under schedule `number`."""
        self._waiting.setdefault(number, {})[body.result.rank] = body
        self._until_s.setdefault(number, now_s + _WITHIN_S)

    def due(self, now_s: float, ranks: int, *, last: bool = False) -> list[WriteResults]:
        """Returns what to write now: results of all `ranks` of the host, those that have waited long enough, or,
        if this is the `last` chance, all."""
        numbers = [
            number
            for number, found in self._waiting.items()
            if last or len(found) >= ranks or now_s >= self._until_s[number]
        ]
        for number in numbers:
            del self._until_s[number]
        return [WriteResults(number, tuple(self._waiting.pop(number).values())) for number in numbers]

    def due_s(self) -> float | None:
        """Returns when results are written in any case; None while none wait."""
        return min(self._until_s.values(), default=None)
