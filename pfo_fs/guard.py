"""Keeps errors of pfo-fs out of training: an error of any kind is one warning, and training goes on without pfo-fs.

All that training calls (constructors, `attach`, callbacks, functions that adapters put into a framework) runs in a
`Guard`. A process that cannot use pfo-fs must train as one that does not use it.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from pfo_fs.errors import PfoError, plain_text

if TYPE_CHECKING:
    from typing_extensions import Self

log = logging.getLogger("pfo_fs")

Method = TypeVar("Method", bound=Callable[..., None])


def reason_of(error: BaseException) -> str:
    """Returns what went wrong; errors that pfo-fs did not foresee are named, and get a hint."""
    if isinstance(error, PfoError):
        return str(error)
    return plain_text(f"{type(error).__name__}: {error} (`pfo-fs doctor` checks this host)")


class WarnOnce:
    """Logs a warning once for each key, until the key is forgotten.

    Args:
        level: The level of the warnings.
    """

    def __init__(self, level: int = logging.WARNING) -> None:
        self._level = level
        self._keys: set[str] = set()

    def __call__(self, text: str, key: str = "") -> bool:
        """Logs `text` unless a warning with this key (by default the text) was logged; returns whether it did."""
        first = self.note(key or text)
        if first:
            log.log(self._level, "%s", text)
        return first

    def note(self, key: str) -> bool:
        """Notes a warning with this key; returns whether it is the first one."""
        first = key not in self._keys
        self._keys.add(key)
        return first

    def forget(self, key: str) -> None:
        """Makes the next warning with this key be logged again."""
        self._keys.discard(key)


class Guard:
    """Takes pfo-fs out of training at the first error.

        with guard:
            ...

    Args:
        go_without: Called once, with the error, before training goes on: from then on, no call of training does
            anything, and clocks and power limits are not changed.
        strict: Errors are raised, in place of all that.
        what: What goes without, for the warning.

    Attributes:
        strict: The argument; it may change while ranks agree on it.
    """

    def __init__(self, go_without: Callable[[Exception], object], *, strict: bool, what: str = "pfo-fs") -> None:
        self.strict = strict
        self._go_without = go_without
        self._what = what
        self._failed = False

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        return error is not None and self.handle(error)

    def handle(self, error: BaseException) -> bool:
        """Takes pfo-fs out of training; returns whether training goes on: if not, the caller raises the error."""
        if self.strict or not isinstance(error, Exception):
            return False
        if not self._failed:
            self._failed = True
            with suppress(Exception):  # a handler of the program's own may fail
                log.warning("%s is off in this process, and training goes on: %s", self._what, reason_of(error))
                log.debug("the error of %s:", self._what, exc_info=error)
            with suppress(Exception):
                self._go_without(error)
        return True


def guarded(method: Method) -> Method:
    """Returns a method that runs in the `guard` of its object; such a method has no result."""

    @wraps(method)
    def run(self: Any, *arguments: Any, **options: Any) -> None:
        with self.guard:
            method(self, *arguments, **options)

    return run  # type: ignore[return-value]


class InTraining(ABC):
    """What training holds until `close`: a context manager, of which a copy does nothing, also in another process."""

    @abstractmethod
    def _start_as_nothing(self) -> None:
        """Sets all attributes, such that no method does anything."""

    @abstractmethod
    def close(self) -> None:
        """Ends it."""

    @classmethod
    def nothing(cls) -> Self:
        """Returns an object that belongs to no job, and whose methods do nothing."""
        made = cls.__new__(cls)
        made._start_as_nothing()
        return made

    def __reduce__(self) -> tuple[Callable[[], InTraining], tuple[()]]:
        return self.nothing, ()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._end(error)

    def _end(self, error: BaseException | None) -> None:
        """Ends it with the block or the process that holds it, maybe by an error."""
        self.close()
