"""Asynchronous work on a simulated GPU: training launches it and goes on, the device does it later and in order."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable


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
        """Returns whether the device has got there."""
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
        run: Runs an instruction (its name, its stage, `time.monotonic_ns()` of its launch, by how many times its work
            is the usual one) and returns when it is done. Only the stream may call it from now on.
    """

    def __init__(self, run: Callable[[str, int, int, float], None]) -> None:
        self._run = run
        self._changed = threading.Condition()
        self._waiting: deque[Callable[[], None]] = deque()
        self._busy = False
        self._closed = False
        self._thread: threading.Thread | None = None

    def launch(self, instruction: str, stage: int = 0, work: float = 1.0) -> None:
        """Puts an instruction that takes `work` times its time into the queue; after `close`, does nothing."""
        launched_ns = time.monotonic_ns()
        self._put(lambda: self._run(instruction, stage, launched_ns, work))

    def call(self, function: Callable[[], None]) -> None:
        """Calls a function when the device gets there; it must be short. At once if the device is idle."""
        with self._changed:
            if self._waiting or self._busy:
                self._waiting.append(function)
                return
        function()

    def synchronize(self) -> None:
        """Waits until the device has done everything."""
        with self._changed:
            while self._waiting or self._busy:
                self._changed.wait()

    def close(self) -> None:
        """Drops what is not done yet."""
        with self._changed:
            self._closed = True
            self._waiting.clear()
            self._changed.notify_all()

    def _put(self, work: Callable[[], None]) -> None:
        with self._changed:
            if self._closed:
                return
            self._waiting.append(work)
            self._changed.notify_all()
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="simulated GPU", daemon=True)
                self._thread.start()

    def _serve(self) -> None:
        while True:
            with self._changed:
                self._busy = False
                self._changed.notify_all()
                while not self._waiting and not self._closed:
                    self._changed.wait()
                if self._closed:
                    return
                self._busy = True
                work = self._waiting.popleft()
            try:
                work()
            except BaseException:
                with self._changed:
                    self._busy = False
                self.close()  # as after an error of a real device; `synchronize` must not wait for ever
                raise
