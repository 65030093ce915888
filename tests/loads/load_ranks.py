"""A job with clocks from loads in virtual time: rank 0's coordinator decides, all else is simulated."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pfo_fs.loads import step_rows
from pfo_fs.loads.choice import LoadChoice
from pfo_fs.loads.coordinator import LoadCoordinator
from pfo_fs.loads.durations import StepShape
from pfo_fs.loads_known import LoadsKnown

Array = Any
CLOCKS = tuple(range(1410, 200, -30))
TOP_MHZ = CLOCKS[0]
WAIT_W = 80.0


def power_w(mhz: Any) -> Any:
    """An A100's, about."""
    x = mhz / TOP_MHZ
    return 60 + 180 * x + 200 * x**3


def cap_clock_mhz(mhz: int) -> float:
    """The clock that the limit for a clock picks: a fifth of all power, and the rest in proportion to the clock."""
    limit_w = (0.2 + 0.8 * mhz / TOP_MHZ) * power_w(TOP_MHZ)
    return next((clock for clock in range(TOP_MHZ, 200, -1) if power_w(clock) <= limit_w), 200)


class Ranks:
    """A job whose ranks draw loads of their own in each step.

    Args:
        lanes: The data-parallel place of each rank; in a pipeline, of each rank of a stage.
        ahead: How many steps before they run loads are told.
        noise: Relative scatter of work beyond its load.
        pipeline: What the ranks of a pipeline run; only the first stage's know loads.
        learned: What an earlier start has learned.
        holds: Clocks are power limits.
        spread: Half of the range of loads, around 1.

    Attributes:
        every: Ranks wait for each other after this number of steps.
        heavy: By how many times as long as its load says rank 0 works.
        beside: From the step and the lowest clock, in MHz, to what each rank does after all have waited: its time in s
            and its power in W.
    """

    def __init__(
        self,
        lanes: Sequence[int],
        ahead: int = 0,
        noise: float = 0.003,
        pipeline: Any = None,
        seed: int = 1,
        learned: Any = None,
        holds: bool = False,
        spread: float = 0.5,
    ) -> None:
        self.every, self.heavy = 1, 1.0
        self.beside: Callable[[int, int], tuple[Any, float]] = lambda step, mhz: (0.2, WAIT_W)
        self.shape = StepShape.of(pipeline) if pipeline else StepShape.alone()
        self._instructions = pipeline.instructions if pipeline else ()
        self.places = [(lane, stage) for stage in range(self.shape.ranks) for lane in lanes]
        shape = self.shape if pipeline else None
        self.coordinator = LoadCoordinator(self.places, CLOCKS, 0.0, 5e-4, shape, learned, holds)
        self._real_mhz = cap_clock_mhz if holds else float
        self._lanes, self._ahead, self._noise, self._spread = list(lanes), ahead, noise, spread
        self._rng = np.random.default_rng(seed)
        self._told: list[Array] = []
        self._clocks: dict[int, list[int]] = {}
        self._energy_j, self._now_s, self._at_top_s = (np.zeros(len(self.places)) for _ in range(3))
        self.ended: list[list[step_rows.EndedStep]] = [[] for _ in self.places]
        self.step, self.full_j = 0, 0.0

    def loads(self, step: int) -> Array:
        """Of the micro-batches of each lane."""
        size = max(self._lanes) + 1, self.shape.micro_batches if self._instructions else 2
        while len(self._told) <= step:
            of_lane = self._rng.uniform(0.6, 1.4, (size[0], 1)) if self._instructions else 1.0
            self._told.append(self._rng.uniform(1 - self._spread, 1 + self._spread, size) * of_lane)
        return self._told[step]

    def times_s(self) -> Array:
        """Of all instructions at the highest clock, without noise, (instructions, ranks of a stage)."""
        loads = self.loads(self.step)[self._lanes]
        if not self._instructions:
            return loads.sum(axis=1)[None]
        forward_s = [[0.1 if i.name == "forward" else 0.21] for i in self._instructions]
        return np.array(forward_s) * (0.1 + loads.T[self.shape.micro_batch])

    def tell(self, step: int, loads: list[Any] | None = None) -> None:
        rows = []
        for rank, (lane, stage) in enumerate(self.places):
            load = (self.loads(step)[lane] if loads is None else loads[rank]) if stage == 0 else None
            told = step_rows.load_of_step(load, self.shape.micro_batches if self._instructions else 0)
            reading = step_rows.Reading(self.step, float(self._energy_j[rank]), float(self._now_s[rank]))
            rows.append(step_rows.make_row(step, told, reading, self.ended[rank][-3:]))
        self._clocks[step] = self.coordinator.receive(rows)
        self.coordinator.learn()

    def run(self, steps: int = 1, loads: list[Any] | None = None) -> list[int]:
        """Runs steps; returns the clocks of the last one, in MHz."""
        mhz: list[int] = []
        for _ in range(steps):
            for told in range(self.step, self.step + self._ahead + 1):
                if told not in self._clocks:
                    self.tell(told, loads)
            mhz = [clock or TOP_MHZ for clock in self._clocks[self.step]]
            real_mhz = list(map(self._real_mhz, mhz))
            at_top_s = self.times_s()
            at_top_s = at_top_s * np.exp(self._noise * self._rng.standard_normal(at_top_s.shape))
            at_top_s[:, 0] *= self.heavy
            times_s = at_top_s * (1 + 0.9 * (TOP_MHZ / np.array(real_mhz[: len(self._lanes)]) - 1))
            work_s, full_s = (self.shape.ends_s(each).ravel() for each in (times_s, at_top_s))
            busy_s, full_busy_s = (self.shape.busy_s(each).ravel() for each in (times_s, at_top_s))
            self._energy_j += power_w(np.array(real_mhz)) * busy_s + WAIT_W * (work_s - busy_s)
            self.full_j += power_w(TOP_MHZ) * float(full_busy_s.sum()) + WAIT_W * float((full_s - full_busy_s).sum())
            self._now_s, self._at_top_s = self._now_s + work_s, self._at_top_s + full_s
            if self.step % self.every == self.every - 1:
                self._energy_j += WAIT_W * (self._now_s.max() - self._now_s)
                self.full_j += WAIT_W * float((self._at_top_s.max() - self._at_top_s).sum())
                (beside_s, beside_w), (rest_s, _) = self.beside(self.step, min(mhz)), self.beside(self.step, TOP_MHZ)
                self._energy_j += beside_w * np.broadcast_to(beside_s, len(mhz))
                self.full_j += beside_w * float(np.broadcast_to(rest_s, len(mhz)).sum())
                self._now_s = np.zeros(len(mhz)) + self._now_s.max() + beside_s
                self._at_top_s = np.zeros(len(mhz)) + self._at_top_s.max() + rest_s
            for rank, seconds in enumerate(work_s):
                self.ended[rank].append(step_rows.EndedStep(self.step, float(seconds), float(mhz[rank])))
            self.step += 1
        return mhz

    @property
    def choice(self) -> LoadChoice:
        return self.coordinator.choice

    @property
    def state(self) -> LoadsKnown:
        return self.coordinator.state

    @property
    def late(self) -> float:
        return float(self._now_s.max() / self._at_top_s.max()) - 1

    def steps_with_lower_clocks(self, steps: int) -> int:
        """Runs steps; returns how many of them had a lower clock."""
        return sum(min(self.run()) < TOP_MHZ for _ in range(steps))

    @property
    def saved(self) -> float:
        return 1 - float(self._energy_j.sum()) / self.full_j
