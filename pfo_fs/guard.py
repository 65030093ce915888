"""Keeps errors of pfo-fs out of training: an error of any kind is one warning, and training goes on without pfo-fs.

All that training calls (constructors, `attach`, callbacks, functions that adapters put into a framework) runs in a
`Guard`. A process that cannot use pfo-fs must train like a process that does not use it.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from inspect import signature
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from pfo_fs.errors import ConfigError, InvalidArgument, PfoError, plain_text

if TYPE_CHECKING:
    from typing_extensions import Self

log = logging.getLogger("pfo_fs")

Method = TypeVar("Method", bound=Callable[..., None])
Arguments = tuple[Any, ...]


def reason_of(error: BaseException) -> str:
    """Returns what went wrong; errors that pfo-fs did not foresee are named, and get a hint."""
    if isinstance(error, PfoError):
        return str(error)
    return plain_text(f"{type(error).__name__}: {error} (`pfo-fs doctor` checks this host)")


class WarnOnce:
    """Logs a warning once for each key, until the key is forgotten."""

    def __init__(self, level: int = logging.WARNING) -> None:
        self._level = level
        self._keys: set[str] = set()

    def __call__(self, text: str, key: str = "") -> bool:
        """Logs `text` unless a warning with this key (by default the text) was noted before; returns whether it did."""
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
        strict: Whether errors are raised, and `go_without` is not called.
        what: What is off after an error, for the warning.

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
        if self.strict or not isinstance(error, Exception) or isinstance(error, InvalidArgument):
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


_OF_SCHEDULER = ("slowdown", "deadline", "power")
"""Targets, which some users give to the optimizer by mistake: they are arguments of the scheduler."""


def takes_any_call(
    arrange: Callable[[Arguments, dict[str, Any]], Arguments] = lambda arguments, _: arguments,
) -> Callable[[Method], Method]:
    """Makes a constructor take any call; if it does not have an argument, `wrong_call` holds the error.

    A TypeError would end training on this rank before the other ranks hear of it. So the constructor runs, with those
    named arguments that it has, and raises `wrong_call` where it raises its other errors.

    Args:
        arrange: Returns the positional arguments in the constructor's order; it may change the named arguments.
    """

    def decorate(constructor: Method) -> Method:
        takes = signature(constructor)

        @wraps(constructor)
        def run(self: InTraining, *arguments: Any, **options: Any) -> None:
            arguments = arrange(arguments, options)
            self.wrong_call = None
            try:
                takes.bind(self, *arguments, **options)
            except TypeError as error:
                names = [name for name in takes.parameters if name != "self"]
                target = next((name for name in _OF_SCHEDULER if name in options and "scheduler_args" in names), "")
                right = f'give scheduler_args={{"{target}": ...}}' if target else f"it takes {', '.join(names)}"
                self.wrong_call = ConfigError(f"{type(self).__name__}: {error}; {right}")
                arguments, options = (), {name: value for name, value in options.items() if name in names}
            constructor(self, *arguments, **options)

        return run  # type: ignore[return-value]

    return decorate


class InTraining(ABC):
    """An object that training holds until `close`: a context manager. A copy does nothing, also in another process.

    Attributes:
        wrong_call: What was wrong with the call of the constructor (`takes_any_call`); None if nothing was.
    """

    wrong_call: ConfigError | None = None

    @abstractmethod
    def _start_as_nothing(self) -> None:
        """Sets all attributes so that no method does anything."""

    @abstractmethod
    def close(self) -> None:
        """Ends the use of this object."""

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
        """Ends the use at the end of the block or of the process, maybe by an error."""
        self.close()


class ZeusCallbacks(InTraining):
    """An optimizer that has all methods of Zeus's `Callback`; methods that it does not need do nothing."""

    def _nothing(self, *_: Any, **__: Any) -> None:
        """Does nothing: for moments of training that the optimizer does not need."""

    on_train_begin = on_train_end = on_epoch_begin = on_epoch_end = _nothing
    on_step_end = on_evaluate = on_instruction_begin = on_instruction_end = _nothing
