"""A clock process for tests of training: the page that both share, without a process; and a device behind training."""

from collections.abc import Iterator
from contextlib import contextmanager

from pfo_fs.device import shared_page
from pfo_fs.device.clocks.clock_requests import ClockRequests
from pfo_fs.device.clocks.latency_model import LatencyModel
from pfo_fs.device.shared_page import PROGRESS, REPLAYED, TURN_SHIFT, MarkReader, SharedPage
from pfo_fs.training.progress_marker import ProgressMarker

MS = 1_000_000


class FakeClocks:
    def __init__(self) -> None:
        self.page = SharedPage.create()
        self.words = self.page.words
        self.name_id = self.page.name_id
        self.rings = 0
        self.reader = MarkReader(self.words)

    def ring_doorbell(self) -> None:
        self.words[shared_page.SLEEPING] = 0
        self.rings += 1

    def check(self) -> bool:
        pass

    @property
    def target(self) -> int:
        return int(self.words[shared_page.TARGET])

    def marks(self) -> list[tuple[int, int]]:
        return self.reader.read(everything=True) or []

    def kinds(self) -> list[int]:
        return [code & 0xFF for _, code in self.marks()]


class Queue(list[int]):
    """Points that a device has not reached yet; `fails` is raised instead of taking one.

    Attributes:
        graph: The points of a CUDA graph; None before there is one.
        captures: Whether points go into it.
    """

    fails: Exception | None = None
    graph: list[int] | None = None
    captures = False

    def enqueue(self, point: int) -> bool:
        if self.fails is not None:
            raise self.fails
        if self.captures and self.graph is not None:
            self.graph.append(point | REPLAYED << TURN_SHIFT)
        else:
            self.append(point)
        return self.captures

    @contextmanager
    def capture(self) -> Iterator[None]:
        self.graph, self.captures = [], True
        yield
        self.captures = False

    def replay(self) -> None:
        self += self.graph or []


class Device:
    """A device behind training, and what the clock process asks for as it gets on.

    Attributes:
        problems: What people were told.
    """

    def __init__(self, clocks: FakeClocks) -> None:
        self.clocks, self.queue, self.problems = clocks, Queue(), list[str]()
        self.marker = ProgressMarker(clocks, self.queue.enqueue, self.problems.append)
        latencies = LatencyModel(known_ns=dict.fromkeys((0, 900, 1005, 1200, 1410), 0))
        self.requests = ClockRequests(clocks.words, latencies)
        self.now_ns = MS

    def reach(self, points: int = 1) -> int:
        """Gets on by some points; returns the clock that is requested then."""
        if points:
            self.clocks.words[PROGRESS] = self.queue[points - 1]
            del self.queue[:points]
        self.now_ns += 100 * MS
        return self.requests.wanted(self.now_ns)

    def catch_up(self) -> int:
        return self.reach(len(self.queue))
