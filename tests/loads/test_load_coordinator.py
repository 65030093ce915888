"""Rank 0's decisions: rows of all ranks in, a clock for each rank out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from pfo_fs.loads import step_rows
from pfo_fs.loads.coordinator import LoadCoordinator
from pfo_fs.loads.state import SHOWN_LANES, last_step
from pfo_fs.loads.step_shape import StepShape
from pfo_fs.planner import make_pipeline

Array = Any
CLOCKS = tuple(range(1410, 200, -30))
TOP_MHZ = CLOCKS[0]
WAIT_W = 80.0


def power_w(mhz: float) -> float:
    """An A100's, about."""
    x = mhz / TOP_MHZ
    return 60 + 180 * x + 200 * x**3


class Ranks:
    """A job whose ranks draw loads of their own in each step.

    Args:
        lanes: The data-parallel place of each rank.
        ahead: How many steps before they run loads are told.
        noise: Relative scatter of work beyond its load.
        change_s: How long a change of the clock takes.
    """

    def __init__(
        self, lanes: Sequence[int], ahead: int = 0, noise: float = 0.003, change_s: float = 0.0, lost_time: float = 5e-4
    ) -> None:
        self.coordinator = LoadCoordinator([(lane, 0) for lane in lanes], CLOCKS, change_s, lost_time)
        self._lanes, self._ahead, self._noise = list(lanes), ahead, noise
        self._rng = np.random.default_rng(1)
        self._told: list[Array] = []
        self._clocks: dict[int, list[int]] = {}
        self._energy_j, self._now_s = np.zeros(len(self._lanes)), 0.0
        self.ended: list[list[step_rows.EndedStep]] = [[] for _ in self._lanes]
        self.step, self.full_j, self.time_s, self.full_s = 0, 0.0, 0.0, 0.0

    def loads(self, step: int) -> Array:
        """Of two micro-batches of each lane."""
        while len(self._told) <= step:
            self._told.append(self._rng.uniform(0.5, 1.5, (max(self._lanes) + 1, 2)))
        return self._told[step]

    def tell(self, step: int, loads: list[Any] | None = None) -> None:
        rows = []
        for rank, lane in enumerate(self._lanes):
            load = step_rows.load_of_step(self.loads(step)[lane] if loads is None else loads[rank])
            reading = step_rows.Reading(self.step, self._energy_j[rank], self._now_s)
            rows.append(step_rows.make_row(step, load, reading, self.ended[rank][-3:]))
        self._clocks[step] = self.coordinator.receive(rows, self._now_s)
        self.coordinator.learn()

    def run(self, steps: int = 1, loads: list[Any] | None = None) -> list[int]:
        """Runs steps; returns the clocks of the last one, in MHz."""
        mhz: list[int] = []
        for _ in range(steps):
            for told in range(self.step, self.step + self._ahead + 1):
                if told not in self._clocks:
                    self.tell(told, loads)
            mhz = [clock or TOP_MHZ for clock in self._clocks[self.step]]
            noise = np.exp(self._noise * self._rng.standard_normal(len(mhz)))
            full_s = np.array([self.loads(self.step)[lane].sum() for lane in self._lanes]) * noise
            work_s = full_s * (1 + 0.9 * (TOP_MHZ / np.array(mhz) - 1))
            step_s, at_top_s = work_s.max() + 0.2, full_s.max() + 0.2
            self._energy_j += [power_w(m) * s + WAIT_W * (step_s - s) for m, s in zip(mhz, work_s, strict=True)]
            self.full_j += sum(power_w(TOP_MHZ) * s + WAIT_W * (at_top_s - s) for s in full_s)
            for rank, seconds in enumerate(work_s):
                self.ended[rank].append(step_rows.EndedStep(self.step, float(seconds), float(mhz[rank])))
            self._now_s += step_s
            self.time_s, self.full_s = self.time_s + step_s, self.full_s + at_top_s
            self.step += 1
        return mhz

    @property
    def saved(self) -> float:
        return 1 - float(self._energy_j.sum()) / self.full_j


@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_ranks_with_less_work_run_slower_no_step_is_longer_and_the_saving_is_told_with_its_error(ahead: int) -> None:
    job = Ranks(range(8), ahead)
    job.run(120)
    state = job.coordinator.state
    assert job.saved > 0.08
    assert job.time_s / job.full_s - 1 < 1e-3
    assert state.saving is not None
    assert abs(state.saving.share - job.saved) < max(0.01, 3 * state.saving.error)
    assert state.explained is not None
    assert state.explained > 0.95
    assert "less energy" in state.text
    assert "Batches of equal work" in state.text


def test_the_last_step_is_told_as_it_ran_and_as_it_would_have_at_the_highest_clocks() -> None:
    job = Ranks(range(4), noise=0.0)
    mhz = job.run(40)
    job.tell(40)
    last = job.coordinator.state.last
    assert last is not None
    assert (last.step, last.lanes, sorted(last.lane)) == (39, 4, [0, 1, 2, 3])
    loads = job.loads(39).sum(axis=1)
    assert list(last.lane) == sorted(range(4), key=lambda lane: -loads[lane])
    assert list(last.mhz) == [mhz[lane] for lane in last.lane]
    assert min(last.mhz) < TOP_MHZ
    assert last.work_s == pytest.approx([job.ended[lane][-1].work_s for lane in last.lane], rel=1e-3)
    assert last.full_s == pytest.approx([loads[lane] for lane in last.lane], rel=0.01)


def test_of_many_lanes_a_few_are_told_among_them_those_with_most_and_least_work_and_the_one_that_ended_last() -> None:
    full_s = np.linspace(1.0, 3.0, 100)
    work_s = np.where(np.arange(100) == 50, 4.0, full_s)
    last = last_step(7, np.full(100, 1200.0), work_s, full_s)
    assert last is not None
    assert len(last.lane) <= SHOWN_LANES
    assert {0, 50, 99} <= {*last.lane}
    assert last.lanes == 100


def test_all_ranks_of_a_lane_get_one_clock() -> None:
    job = Ranks([0, 0, 1, 1, 2, 2])
    job.run(40)
    for _ in range(10):
        mhz = job.run()
        assert mhz[::2] == mhz[1::2]


def test_the_time_of_a_change_is_left_before_the_last_one_ends() -> None:
    quick, slow = Ranks(range(4), noise=0.0), Ranks(range(4), noise=0.0, change_s=0.3)
    assert sum(sum(quick.run()) for _ in range(60)) < sum(sum(slow.run()) for _ in range(60))


def test_no_clock_is_lower_than_that_of_least_energy_nor_than_three_fifths() -> None:
    job = Ranks(range(8), noise=0.0)
    least = min(min(job.run()) for _ in range(100))
    assert least >= 0.6 * TOP_MHZ


@pytest.mark.parametrize(
    "loads", [[None] * 4, [[float("nan")]] * 4, [[1.0]] * 3 + [[(1.0, 2.0)]], [["x"]] * 4, [[(1.0,) * 9]] * 4]
)
def test_a_step_whose_loads_cannot_be_used_has_the_highest_clocks(loads: list[Any]) -> None:
    job = Ranks(range(4))
    job.run(40)
    assert job.run(loads=loads) == [TOP_MHZ] * 4
    assert min(min(job.run()) for _ in range(5)) < TOP_MHZ


def test_loads_of_another_form_are_learned_anew() -> None:
    job = Ranks(range(4))
    job.run(40)
    job.run(14, loads=[[(load, load) for load in (1.0, 1.0)]] * 4)
    assert job.coordinator.state.residual > 0


def test_ranks_at_different_steps_are_an_error() -> None:
    rows = [step_rows.make_row(step, (1.0, 1.0, 1.0), step_rows.Reading(step), []) for step in (3, 4)]
    with pytest.raises(ValueError, match="step 4"):
        LoadCoordinator([(0, 0), (1, 0)], CLOCKS, 0.0, 5e-4).receive(rows, 0.0)


def test_time_that_was_lost_counts_although_clocks_came_late() -> None:
    def lost(late: bool) -> float:
        coordinator = LoadCoordinator([(rank, 0) for rank in range(4)], CLOCKS, 0.0, 5e-4)
        rng = np.random.default_rng(0)
        ended: list[list[step_rows.EndedStep]] = [[] for _ in range(4)]
        for step in range(60):
            loads = rng.uniform(0.5, 1.5, 4)
            rows = [
                step_rows.make_row(step, (1.0, loads[r], loads[r] ** 2), step_rows.Reading(step), ended[r])
                for r in range(4)
            ]
            mhz = [each or TOP_MHZ for each in coordinator.receive(rows, float(step))]
            coordinator.learn()
            # Clocks slow all but the last rank down by more than they are known to: the step gets longer.
            for rank in range(4):
                seconds = loads[rank] * (TOP_MHZ / mhz[rank]) ** 2
                clock = -mhz[rank] if late and mhz[rank] < TOP_MHZ else mhz[rank]
                ended[rank] = [step_rows.EndedStep(step, float(seconds), float(clock))]
        return coordinator.state.late

    assert lost(late=False) > 0
    assert lost(late=True) > 0


def test_an_end_that_got_lost_does_not_stop_what_is_learned() -> None:
    job = Ranks(range(4))
    job.run(40)
    job.ended[2].pop()  # that rank's last end never arrives
    before = job.coordinator.state.steps
    job.run(10)
    assert job.coordinator.state.steps >= before + 8


class Pipelines:
    """A job of pipelines of two stages, in which only the first ranks know the loads; ranks are in order of stages."""

    def __init__(self, pipelines: int = 6, micro_batches: int = 6) -> None:
        pipeline = make_pipeline("1f1b", 2, micro_batches)
        self.shape, self.pipelines = StepShape.of(pipeline), pipelines
        self.places = [(lane, stage) for stage in range(2) for lane in range(pipelines)]
        self.coordinator = LoadCoordinator(self.places, CLOCKS, 0.0, 5e-4, self.shape)
        self._instruction_s = np.array([[0.1 if i.name == "forward" else 0.21] for i in pipeline.instructions])
        self._rng, self._ended = np.random.default_rng(3), [[] for _ in self.places]
        self._energy_j, self._now_s, self.step = np.zeros(len(self.places)), 0.0, 0
        self.full_j = self.full_s = 0.0

    def run(self, silent: bool = False) -> list[int]:
        """Runs a step; returns the clock of each rank in MHz."""
        work = self._rng.uniform(0.4, 1.6, (self.shape.micro_batches, self.pipelines))
        work *= self._rng.uniform(0.5, 1.5, self.pipelines)
        rows = []
        for rank, (lane, stage) in enumerate(self.places):
            knows = stage == 0 and not (silent and lane == 1)
            load = step_rows.load_of_step(work[:, lane], self.shape.micro_batches) if knows else ()
            reading = step_rows.Reading(self.step, self._energy_j[rank], self._now_s)
            rows.append(step_rows.make_row(self.step, load, reading, self._ended[rank][-2:]))
        mhz = [each or TOP_MHZ for each in self.coordinator.receive(rows, self._now_s)]
        self.coordinator.learn()
        full_s = self._instruction_s * (0.1 + work[self.shape.micro_batch])
        by_lane = np.array(mhz[: self.pipelines])
        times_s = full_s * (1 + 0.9 * (TOP_MHZ / by_lane - 1)) * np.exp(0.003 * self._rng.standard_normal(full_s.shape))
        ends_s = self.shape.ends_s(times_s)
        step_s, full_step_s = float(ends_s.max()) + 0.1, float(self.shape.ends_s(full_s).max()) + 0.1
        for rank, (lane, stage) in enumerate(self.places):
            mine = self.shape.rank == stage
            busy_s, busy_full_s = float(times_s[mine, lane].sum()), float(full_s[mine, lane].sum())
            self._energy_j[rank] += power_w(mhz[rank]) * busy_s + WAIT_W * (step_s - busy_s)
            self.full_j += power_w(TOP_MHZ) * busy_full_s + WAIT_W * (full_step_s - busy_full_s)
            self._ended[rank].append(step_rows.EndedStep(self.step, float(ends_s[stage, lane]), float(mhz[rank])))
        self._now_s, self.full_s, self.step = self._now_s + step_s, self.full_s + full_step_s, self.step + 1
        return mhz

    @property
    def saved(self) -> float:
        return 1 - float(self._energy_j.sum()) / self.full_j

    @property
    def late(self) -> float:
        return self._now_s / self.full_s - 1


def test_all_ranks_of_a_pipeline_get_one_clock_from_loads_that_one_of_them_knows() -> None:
    job = Pipelines()
    for _ in range(120):
        mhz = job.run()
        assert mhz[: job.pipelines] == mhz[job.pipelines :]
    state = job.coordinator.state
    assert job.saved > 0.08
    assert job.late < 1e-3
    assert state.saving is not None
    assert abs(state.saving.share - job.saved) < max(0.01, 3 * state.saving.error)
    assert min(job.run(silent=True)) == TOP_MHZ, "the loads of one pipeline are not known"
    assert min(job.run()) < TOP_MHZ
