"""Iterations on real nodes, event by event: clocks that act late, and calls that wait for each other.

The clock followers are those of the real clock processes (`device/clocks/clock_follower.py`). They see only what the
real processes see: the points that the device reaches, a little late, and the duration of their own calls.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import chain
from random import Random
from typing import NamedTuple

from pfo_fs.device.clocks.clock_follower import ClockFollower
from pfo_fs.device.clocks.followed_plan import START, FollowedPlan
from pfo_fs.device.clocks.latency_model import LatencyModel
from pfo_fs.device.gpu.driver_errors import NEVER
from pfo_fs.device.shared_page import IDLE
from pfo_fs.device.simulated.physics import NodePhysics

_SEEN_LATE_S = 0.0001
"""The longest time until a clock process sees that the device has reached a point."""


class Work(NamedTuple):
    """One iteration of one pipeline.

    Attributes:
        orders: For each rank, its nodes in order.
        after: For each node, the nodes on other ranks that wait for it, as (node, delay in s).
        times_s: For each node and clock number, its duration; clock 0 is the highest.
        powers_w: For each node and clock number, the power of one GPU.
        kinds: For each node, a number that is the same for the same work.
    """

    orders: Sequence[range]
    after: Sequence[Sequence[tuple[int, float]]]
    times_s: Sequence[Sequence[float]]
    powers_w: Sequence[Sequence[float]]
    clocks_mhz: Sequence[int]
    kinds: Sequence[int]
    rank_of: Sequence[int]


class NodeSettings(NamedTuple):
    """How ranks lie on nodes, and how their clocks are switched.

    Attributes:
        gpus_per_rank: Number of GPUs that share a rank's work, all on one node.
        ranks_per_node: Number of ranks of the pipeline on one node.
    """

    physics: NodePhysics
    gpus_per_rank: int = 1
    ranks_per_node: int = 1


@dataclass
class _Gpu:
    """One GPU: the clock in force, and the clock that acts next."""

    rank: int
    number: int = 0
    next_number: int = 0
    acts_s: float = 0.0
    asked_s: float = 0.0
    set_mhz: int = 0
    calling: bool = False


@dataclass
class _Rank:
    """One rank: where it is in its order, and the instruction that runs."""

    gpus: list[_Gpu]
    follower: ClockFollower
    latencies: LatencyModel
    place: int = 0
    node: int = -1
    left: float = 0.0
    since_s: float = 0.0
    version: int = 0
    wanted_mhz: int = 0
    lowest_mhz: int = 0
    timer: int = 0
    plan: FollowedPlan | None = None
    progress: tuple[int, int] = (0, IDLE)
    clocks: Sequence[int] = ()


@dataclass
class NodeIteration:
    """The result; lists by node.

    Attributes:
        starts_s, ends_s: When each instruction begins and ends, from the begin of the iteration.
        energies_j: The energy of all GPUs of the rank in each instruction.
        wrong_s: GPU time spent in instructions at another clock than the plan's, in s.
        changes: For each rank, (time, MHz) of each change of the lowest clock of its GPUs: they compute together, so it
            decides how long an instruction takes.
    """

    starts_s: list[float]
    ends_s: list[float]
    energies_j: list[float]
    wrong_s: float = 0.0
    changes: list[list[tuple[float, int]]] = field(default_factory=list)


class SimulatedNodes:
    """The nodes of one pipeline; what its clock processes have learned is kept from one iteration to the next.

    Args:
        seed: Seed of the calls' durations, and of how late points are seen.
        known_mhz: Clocks whose latency is known from the start, as after a long time; others are learned.
    """

    def __init__(
        self, settings: NodeSettings, ranks: int, seed: int, top_mhz: int = 0, known_mhz: Sequence[int] = ()
    ) -> None:
        self.settings = settings
        self._random = Random(seed)
        self._ranks = []
        for rank in range(ranks):
            latencies_ns = {mhz: round(settings.physics.latency_s(mhz) * 1e9) for mhz in known_mhz}
            latencies = LatencyModel(None, latencies_ns, top_mhz, settings.gpus_per_rank)
            latencies.calls.gpus = settings.gpus_per_rank * settings.ranks_per_node
            gpus = [_Gpu(rank) for _ in range(settings.gpus_per_rank)]
            self._ranks.append(_Rank(gpus, ClockFollower(latencies), latencies))
        self._drivers: list[deque[_Gpu]] = [deque() for _ in range(-(-ranks // settings.ranks_per_node))]
        self._driver_busy = [False] * len(self._drivers)
        self._turn = 0
        self._now_s = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self._arm: tuple[tuple[int, ...], ...] = ()  # the clocks of all ranks
        self._plans: dict[tuple[int, tuple[tuple[int, ...], ...]], FollowedPlan] = {}

    def latencies_of(self, rank: int) -> LatencyModel:
        """Returns what the clock process of a rank has learned."""
        return self._ranks[rank].latencies

    def begin_from(self, other: SimulatedNodes) -> None:
        """Takes over what the clock processes of other nodes have learned."""
        self._now_s = other._now_s
        for rank, known in zip(self._ranks, other._ranks, strict=True):
            rank.latencies = deepcopy(known.latencies)
            rank.follower = ClockFollower(rank.latencies)

    def run(self, work: Work, clocks_mhz: Sequence[Sequence[int]], factors: Sequence[float]) -> NodeIteration:
        """Simulates one iteration until its last instruction has ended.

        Args:
            clocks_mhz: For each rank, the clock of each instruction; empty for the default clock.
            factors: For each node, its duration as a multiple of that in `work`.
        """
        nodes = len(work.after)
        self._work, self._factors = work, factors
        self._number_of = {mhz: number for number, mhz in enumerate(work.clocks_mhz)} | {0: 0}
        self._began_s = began_s = self._now_s
        self._result = NodeIteration([0.0] * nodes, [0.0] * nodes, [0.0] * nodes)
        self._result.changes = [[] for _ in self._ranks]
        self._missing = [0] * nodes
        for later, _ in chain.from_iterable(work.after):
            self._missing[later] += 1
        self._ready_s = [began_s] * nodes
        self._left = nodes
        self._turn += 1
        self._arm = tuple(map(tuple, clocks_mhz))
        for number, rank in enumerate(self._ranks):
            rank.place, rank.node = 0, -1
            rank.clocks = clocks_mhz[number]
            rank.plan = self._plan_of(number, clocks_mhz[number])
            self._point(number, START)
            self._try_begin(number)
        while self._left:
            self._now_s, _, happens = heapq.heappop(self._events)
            happens()
        return self._result

    def wait(self, seconds: float) -> None:
        """Lets time pass between two iterations."""
        until_s = self._now_s + seconds
        while self._events and self._events[0][0] <= until_s:
            self._now_s, _, happens = heapq.heappop(self._events)
            happens()
        self._now_s = until_s

    # ---- time

    def _at(self, at_s: float, happens: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._events, (at_s if at_s > self._now_s else self._now_s, self._count, happens))

    # ---- instructions

    def _try_begin(self, number: int) -> None:
        """Begins the next instruction of a rank when everything that it waits for is there."""
        rank = self._ranks[number]
        order = self._work.orders[number]
        if rank.node >= 0 or rank.place >= len(order):
            return
        node = order[rank.place]
        if self._missing[node]:
            return
        if self._ready_s[node] > self._now_s:
            self._at(self._ready_s[node], lambda: self._try_begin(number))
            return
        rank.node, rank.left, rank.since_s = node, 1.0, self._now_s
        self._result.starts_s[node] = self._now_s - self._began_s
        self._point(number, rank.place << 1)
        self._expect_end(number)

    def _expect_end(self, number: int) -> None:
        rank = self._ranks[number]
        rank.version += 1
        version = rank.version
        self._at(self._now_s + rank.left * self._time_s(rank), lambda: self._end(number, version))

    def _time_s(self, rank: _Rank) -> float:
        times, gpus = self._work.times_s[rank.node], rank.gpus
        if len(gpus) == 1:
            return times[gpus[0].number] * self._factors[rank.node]
        return max([times[gpu.number] for gpu in gpus]) * self._factors[rank.node]

    def _account(self, rank: _Rank) -> None:
        """Adds up progress and energy since the last event of this rank."""
        took_s = self._now_s - rank.since_s
        if rank.node < 0 or took_s <= 0:
            return
        rank.left = max(0.0, rank.left - took_s / self._time_s(rank))
        rank.since_s = self._now_s
        result, powers = self._result, self._work.powers_w[rank.node]
        planned = self._number_of[rank.clocks[rank.place]] if rank.clocks else 0
        for gpu in rank.gpus:
            result.energies_j[rank.node] += took_s * powers[gpu.number]
            if gpu.number != planned:
                result.wrong_s += took_s

    def _end(self, number: int, version: int) -> None:
        rank = self._ranks[number]
        if version != rank.version:
            return  # the clock has changed since
        self._account(rank)
        node, rank.node = rank.node, -1
        self._result.ends_s[node] = self._now_s - self._began_s
        self._left -= 1
        self._point(number, rank.place << 1 | 1)
        rank.place += 1
        if rank.place == len(self._work.orders[number]):
            self._point(number, IDLE)
        for later, delay_s in self._work.after[node]:
            self._missing[later] -= 1
            self._ready_s[later] = max(self._ready_s[later], self._now_s + delay_s)
            if not self._missing[later]:
                self._try_begin(self._work.rank_of[later])
        self._try_begin(number)

    # ---- what the clock processes see and ask for

    def _plan_of(self, number: int, clocks_mhz: Sequence[int]) -> FollowedPlan | None:
        if not clocks_mhz:
            return None
        key = number, self._arm
        if key not in self._plans:
            kinds = [self._work.kinds[node] for node in self._work.orders[number]]
            self._plans[key] = FollowedPlan(clocks_mhz, kinds, before=self._ranks[number].plan)
        return self._plans[key]

    def _point(self, number: int, code: int) -> None:
        plan = self._ranks[number].plan
        if plan is None:
            return
        rank, reached_ns = self._ranks[number], self._now_ns()
        progress = rank.progress = self._turn, code

        def see() -> None:
            if rank.progress == progress:  # the device has not come further before the next look
                now_ns = self._now_ns()
                rank.follower.look(reached_ns)
                rank.follower.reached(*progress, plan, now_ns)
                self._ask(number, now_ns)

        self._at(self._now_s + self._random.uniform(0, _SEEN_LATE_S), see)

    def _now_ns(self) -> int:
        return round(self._now_s * 1e9)

    def _ask(self, number: int, now_ns: int) -> None:
        """Asks a rank's follower for the clock, and again when it may want another one."""
        rank = self._ranks[number]
        rank.follower.look(now_ns)
        self._request(number, rank.follower.wanted(now_ns))
        rank.timer += 1
        timer, due_ns = rank.timer, rank.follower.due_ns
        if due_ns < NEVER:
            self._at(due_ns / 1e9, lambda: self._ask(number, self._now_ns()) if rank.timer == timer else None)

    def _request(self, number: int, mhz: int) -> None:
        rank = self._ranks[number]
        if rank.wanted_mhz == mhz:
            return
        rank.wanted_mhz = mhz
        for gpu in rank.gpus:
            self._call_if_needed(gpu)

    def _call_if_needed(self, gpu: _Gpu) -> None:
        if gpu.calling or gpu.set_mhz == self._ranks[gpu.rank].wanted_mhz:
            return
        gpu.calling = True
        gpu.asked_s = self._now_s
        if self.settings.physics.serial:
            driver = gpu.rank // self.settings.ranks_per_node
            self._drivers[driver].append(gpu)
            self._serve(driver)
        else:
            self._call(gpu, -1)

    # ---- the driver

    def _serve(self, driver: int) -> None:
        if self._drivers[driver] and not self._driver_busy[driver]:
            gpu = self._drivers[driver].popleft()
            self._driver_busy[driver] = True
            self._call(gpu, driver)

    def _call(self, gpu: _Gpu, driver: int) -> None:
        mhz = self._ranks[gpu.rank].wanted_mhz  # the newest request wins
        call_s = self.settings.physics.call_time_s(mhz, self._random.random(), self._random.random())
        waited_ns = round((self._now_s - gpu.asked_s) * 1e9)

        def returned() -> None:
            gpu.calling = False
            gpu.set_mhz = mhz
            rank = self._ranks[gpu.rank]
            if gpu is rank.gpus[-1]:  # of the rank's GPUs, the one that waits longest
                rank.latencies.calls.called(self._now_ns(), round(call_s * 1e9), waited_ns)
                rank.latencies.clock_was_set(self._now_ns(), mhz, waited_ns)
            lowest_mhz = min((other.set_mhz for other in rank.gpus if other.set_mhz), default=0)
            if lowest_mhz != rank.lowest_mhz:
                rank.lowest_mhz = lowest_mhz
                self._result.changes[gpu.rank].append((self._now_s - self._began_s, lowest_mhz))
            gpu.next_number = self._number_of[mhz]
            gpu.acts_s = acts_s = self._now_s + self.settings.physics.latency_s(mhz)
            self._at(acts_s, lambda: self._acts(gpu, acts_s))
            if driver >= 0:
                self._driver_busy[driver] = False
            self._call_if_needed(gpu)
            if driver >= 0:
                self._serve(driver)

        self._at(self._now_s + call_s, returned)

    def _acts(self, gpu: _Gpu, acts_s: float) -> None:
        if gpu.acts_s != acts_s:
            return  # a later request has replaced this one
        rank = self._ranks[gpu.rank]
        self._account(rank)
        gpu.number = gpu.next_number
        if rank.node >= 0:
            self._expect_end(gpu.rank)
