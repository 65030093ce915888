"""Gathers records of the ranks of the host that come at about the same time, so that they are written to one file."""

from __future__ import annotations

from dataclasses import replace

from pfo_fs.helper.operations import RegisterRanks, WriteResults
from pfo_fs.store.bodies import MOST_NAMES_PER_FILE, ResultBody

_JOIN_WITHIN_S = 0.1
_MEASURED_WITHIN_S = 0.25
"""Ranks join, and measure the same iterations, at the same time. Records that miss these times are written later."""


class RegistrationGatherer:
    """The registrations that wait for those of other ranks."""

    def __init__(self) -> None:
        self._waiting: list[RegisterRanks] = []
        self._until_s = 0.0

    @property
    def is_empty(self) -> bool:
        """Whether no registration waits."""
        return not self._waiting

    def add(self, registration: RegisterRanks, now_s: float) -> None:
        """Adds the registration of a rank."""
        if not self._waiting:
            self._until_s = now_s + _JOIN_WITHIN_S
        last = self._waiting[-1] if self._waiting else None
        if last is not None and _fit(last, registration):
            self._waiting[-1] = replace(last, ranks=last.ranks + registration.ranks)
        else:
            self._waiting.append(registration)

    def due(self, now_s: float, *, others_come: bool) -> list[RegisterRanks]:
        """Returns what to write now; nothing while other ranks of the host are about to join, for a short time."""
        if others_come and now_s < self._until_s:
            return []
        due, self._waiting = self._waiting, []
        return due

    def due_s(self) -> float | None:
        """Returns when registrations are written in any case; None while none wait."""
        return self._until_s if self._waiting else None


def _fit(one: RegisterRanks, other: RegisterRanks) -> bool:
    """Whether two registrations can be one: of different ranks of the same job, and not too many."""
    ranks = [body.rank_info.rank for body in one.ranks + other.ranks]
    is_one_job = replace(one, ranks=()) == replace(other, ranks=())
    return is_one_job and len(set(ranks)) == len(ranks) <= MOST_NAMES_PER_FILE


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
        self._until_s.setdefault(number, now_s + _MEASURED_WITHIN_S)

    def due(self, now_s: float, ranks: int, *, last: bool) -> list[WriteResults]:
        """Returns what to write now: results that have waited long enough, and those of all ranks of the host.

        Args:
            now_s: Monotonic time.
            ranks: The number of ranks of the host.
            last: Whether to write everything, because the helper is about to end.
        """
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
