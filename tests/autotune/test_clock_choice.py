"""Which clocks are measured next."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pfo_fs.autotune.clock_choice import coarse_clocks, fine_clocks, grid_of, share_out
from pfo_fs.autotune.samples import Point
from pfo_fs.device.simulated.physics import A100
from pfo_fs.planner import make_pipeline

OFFERED = list(range(1410, 209, -15))
Power = Callable[[int], float]


def point(time_s: float, watts: float, error: float = 0.0005) -> Point:
    found = Point()
    found.add_times(100, time_s, error * time_s)
    found.add_power(watts, error * watts)
    return found


def known(clocks: list[int], name: str = "forward", bump: int = 0) -> dict[int, Point]:
    model = A100.coefficients(name)
    return {mhz: point(model.time_s(mhz) * (1.05 if mhz == bump else 1), model.power_w(mhz)) for mhz in clocks}


def test_a_sweep_goes_down_until_energy_has_passed_its_minimum() -> None:
    grid = grid_of(OFFERED, 21)
    measured: list[int] = []
    while clocks := coarse_clocks(OFFERED, grid, {(0, "forward"): known(measured), (0, "backward"): known(measured)}):
        assert clocks[0] == max(set(grid) - set(measured)), "from high to low"
        measured.append(clocks[0])
    energies = {
        mhz: A100.coefficients("forward").time_s(mhz) * A100.coefficients("forward").power_w(mhz) for mhz in grid
    }
    best = min(energies, key=lambda mhz: energies[mhz])
    assert 0 < grid.index(min(measured)) - grid.index(best) <= 3
    assert min(measured) > 600, "the lowest clocks would take several times as long"


def test_energy_that_has_risen_five_times_in_a_row_ends_a_sweep() -> None:
    offered = list(range(1000, 800, -10))

    curve = {mhz: point(1.0, 10 + abs(mhz - 930) / 10) for mhz in offered}
    grid = offered[::2]  # every second clock: five rises
    before = {mhz: p for mhz, p in curve.items() if mhz >= 930 - 4 * 20 and mhz in grid}
    after = {mhz: p for mhz, p in curve.items() if mhz >= 930 - 5 * 20 and mhz in grid}
    assert coarse_clocks(offered, grid, {(0, "forward"): before}) != []
    assert coarse_clocks(offered, grid, {(0, "forward"): after}) == []


def test_a_dip_by_noise_does_not_start_the_count_anew() -> None:
    offered = list(range(1000, 800, -10))
    grid = offered[::2]
    energies = [10, 9, 8, 8.2, 8.15, 8.3, 8.25, 8.4]
    curve = {mhz: point(1.0, energy) for mhz, energy in zip(grid, energies, strict=False)}
    assert coarse_clocks(offered, grid, {(0, "forward"): curve}) == []


def test_one_instruction_whose_energy_still_falls_keeps_its_stage_going() -> None:
    grid = grid_of(OFFERED, 21)
    rising, falling = known(grid[:12]), {mhz: point(0.1, mhz) for mhz in grid[:12]}
    assert coarse_clocks(OFFERED, grid, {(0, "forward"): rising}) == []
    assert coarse_clocks(OFFERED, grid, {(0, "forward"): rising, (0, "backward"): falling}) == grid[12:]


def test_gaps_are_halved_and_left_alone_where_a_straight_line_fits() -> None:
    grid = grid_of(OFFERED, 21)
    useful = grid[:12]
    first = fine_clocks(OFFERED, grid, {(0, "forward"): known(useful)}, 0.003)
    assert set(first) & set(useful) == set()
    assert len(first) >= 5
    assert fine_clocks(OFFERED, grid, {(0, "forward"): known([*useful, *first])}, 0.003) == []


def test_a_step_in_the_curve_is_looked_into() -> None:
    grid = grid_of(OFFERED, 21)
    useful = grid[:12]
    first = fine_clocks(OFFERED, grid, {(0, "forward"): known(useful)}, 0.003)
    again = fine_clocks(OFFERED, grid, {(0, "forward"): known([*useful, *first], bump=first[1])}, 0.003)
    assert again
    assert all(abs(mhz - first[1]) < 100 for mhz in again)


def test_what_is_known_too_badly_is_measured_again() -> None:
    grid = grid_of(OFFERED, 21)
    curve = known([*grid[:12], *fine_clocks(OFFERED, grid, {(0, "forward"): known(grid[:12])}, 0.003)])
    curve[grid[2]] = point(0.1, 300.0, error=0.02)
    curve[grid[2]].time_s, curve[grid[2]].power_w = known([grid[2]])[grid[2]].time_s, known([grid[2]])[grid[2]].power_w
    assert fine_clocks(OFFERED, grid, {(0, "forward"): curve}, 0.003) == [grid[2]]


@pytest.mark.parametrize(
    ("schedule", "stages", "microbatches", "ranks", "least"),
    [("1f1b", 8, 96, None, 10), ("gpipe", 4, 32, None, 6), ("zb-h1", 8, 96, None, 10), ("interleaved", 8, 32, 4, 3)],
)
def test_clocks_share_an_iteration_with_enough_samples_each(
    schedule: str, stages: int, microbatches: int, ranks: int | None, least: int
) -> None:
    pipeline = make_pipeline(schedule, stages, microbatches, num_ranks=ranks)
    for order in pipeline.orders:
        kinds = [(i.stage, i.name) for i in order]
        shared = share_out(kinds, OFFERED[:12], 12)
        used = list(dict.fromkeys(shared))
        assert len(used) >= least
        assert used == OFFERED[: len(used)], "the first clocks come first"
        for kind in set(kinds):
            for mhz in used:
                clean = [
                    n for n in range(1, len(kinds)) if kinds[n] == kind and shared[n] == mhz and shared[n - 1] == mhz
                ]
                assert len(clean) >= 3


def test_few_microbatches_take_one_clock_at_a_time() -> None:
    kinds = [(0, "forward"), (0, "backward")] * 2
    assert share_out(kinds, [1410, 1200], 5) == [1410] * 4
