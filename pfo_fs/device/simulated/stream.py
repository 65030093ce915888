"""Asynchronous work on a simulated GPU: training launches it and goes on, the device does it later and in order."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, Queue


class SimulatedEvent:
    """A point in a stream whose time can be read later, as `torch.cuda.Event` with timing."""

    def __init__(self, stream: SimulatedStream) -> None:
        self._stream = stream
        self._at_ns = 0

    def record(self) -> None:
        """Puts the event behind all that was launched before."""
        self._at_ns = 0
        self._stream.call(self._reached)

    def _reached(self) -> None:
        self._at_ns = time.monotonic_ns()

    def query(self) -> bool:
        return self._at_ns > 0

    def elapsed_time(self, end: SimulatedEvent) -> float:
        """Returns the time from this event to a later one, in ms."""
        return (end._at_ns - self._at_ns) / 1e6


class SimulatedStream:
    """A queue of work of one simulated GPU.

        stream.launch("forward", stage=0)      # returns at once
        stream.call(lambda: print("done"))     # runs when the device gets there
        stream.synchronize()

    Args:
        run: Runs an instruction (its name, its stage, `time.monotonic_ns()` of its launch, its work as a multiple of
            the usual) and returns when the instruction is done. From now on, only the stream may call `run`.
    """

    def __init__(self, run: Callable[[str, int, int, float], None]) -> None:
        self._run = run
        self._waiting: Queue[Callable[[], None] | None] = Queue()  # None ends the thread
        self._closed = False
        self._thread = threading.Thread(target=self._serve, name="simulated GPU", daemon=True)

    def launch(self, instruction: str, stage: int = 0, work: float = 1.0) -> None:
        """Puts an instruction that takes `work` times its usual time into the queue; after `close`, does nothing."""
        launched_ns = time.monotonic_ns()
        if not self._closed:
            self._waiting.put(lambda: self._run(instruction, stage, launched_ns, work))
            if self._thread.ident is None:
                self._thread.start()

    def call(self, function: Callable[[], None]) -> None:
        """Calls a short function when the device has done all work before; at once if it is idle, and after `close`."""
        if self._waiting.unfinished_tasks and not self._closed:
            self._waiting.put(function)
        else:
            function()

    def synchronize(self) -> None:
        self._waiting.join()

    def close(self) -> None:
        """Drops the work that has not begun."""
        self._closed = True
        with suppress(Empty):
            while True:
                self._waiting.get_nowait()
                self._waiting.task_done()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._waiting.put(None)

    def _serve(self) -> None:
        work: Callable[[], None] | None
        while (work := self._waiting.get()) is not None:
            try:
                work()
            except BaseException:
                self.close()  # as after an error of a real device; `synchronize` must not wait for ever
                raise
            finally:
                self._waiting.task_done()
        self._waiting.task_done()
