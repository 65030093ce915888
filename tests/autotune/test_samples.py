"""From results to what is known of each instruction at each clock."""

from __future__ import annotations

import random

import pytest

from pfo_fs.autotune.instruction_runs import RunInstruction, iterations_of
from pfo_fs.autotune.samples import Point, Samples, interpolated
from pfo_fs.models import InstructionPower, ProfilingResult, Switching

F, B = "forward", "backward"


def result(times: dict[str, list[list[float]]], powers: list[InstructionPower] | None = None) -> ProfilingResult:
    count = len(next(iter(times.values())))
    busy_s = [sum(sum(rows[number]) for rows in times.values()) for number in range(count)]
    energies = {name: [[300 * time_s for time_s in row] for row in rows] for name, rows in times.items()}
    return ProfilingResult(
        rank=0,
        iter_time=[1.0 + each_s for each_s in busy_s],
        iter_energy=[80.0 + 300 * each_s for each_s in busy_s],
        time_breakdown=times,
        energy_breakdown=energies,
        powers=powers or [],
    )


def power(name: str, mhz: int, watts: float, error: float = 1.0) -> InstructionPower:
    return InstructionPower(instruction=name, frequency=mhz, power=watts, error=error, seconds=5)


def test_times_are_averaged_by_clock_without_the_first_after_a_change() -> None:
    entries: list[RunInstruction] = [(F, 0, 1410)] * 4 + [(F, 0, 900)] * 4
    samples = Samples()
    samples.add(result({F: [[9.0, 0.1, 0.1, 0.1, 9.0, 0.2, 0.2, 0.2]]}), entries)
    curve = samples.timed((0, F))
    assert {mhz: (point.count, point.time_s) for mhz, point in curve.items()} == {
        1410: (3, pytest.approx(0.1)),
        900: (3, pytest.approx(0.2)),
    }


def test_where_nothing_is_settled_the_times_are_known_less_well() -> None:
    samples = Samples()
    samples.add(result({F: [[0.05] * 2] * 5}), [(F, 0, 1410), (F, 0, 900)])
    point = samples.timed((0, F))[900]
    assert point.time_s == pytest.approx(0.05)
    assert 0.03 < point.time_error < 0.1
    samples.add(result({F: [[0.06] * 20]}), [(F, 0, 900)] * 20)
    assert point.time_s == pytest.approx(0.06, rel=0.03), "settled runs count for more"


def test_a_pause_of_the_machine_is_left_out() -> None:
    rng = random.Random(1)
    durations = [rng.gauss(0.1, 0.001) for _ in range(50)]
    samples = Samples()
    samples.add(result({F: [[0.1, *durations, 5.0]]}), [(F, 0, 900)] * 52)
    assert samples.curve((0, F))[900].time_s == pytest.approx(0.1, rel=0.01)


def test_fitted_powers_win_over_the_mean_of_iterations() -> None:
    samples = Samples()
    samples.add(
        result({F: [[0.1] * 10], B: [[0.1] * 10]}, [power(F, 900, 250.0), power("", 0, 80.0)]),
        [(F, 0, 900)] * 10 + [(B, 0, 900)] * 10,
    )
    assert samples.curve((0, F))[900].power_w == pytest.approx(250)
    assert samples.curve((0, B))[900].power_w == pytest.approx(300, rel=0.01)
    assert samples.curve((0, B))[900].power_error > 0.04
    assert samples.waiting.power_w == pytest.approx(80)


def test_better_known_powers_weigh_more() -> None:
    samples = Samples()
    for watts, error in ((200.0, 1.0), (230.0, 20.0)):
        samples.add(result({F: [[0.1] * 5]}, [power(F, 900, watts, error)]), [(F, 0, 900)] * 5)
    assert samples.curve((0, F))[900].power_w == pytest.approx(200, abs=0.5)


def test_a_warm_gpu_is_told_by_its_warmth() -> None:
    samples = Samples()
    samples.add(result({F: [[0.1] * 5]}, [power(F, 900, 220.0)]), [(F, 0, 900)] * 5, power_drift_factor=1.1)
    assert samples.curve((0, F))[900].power_w == pytest.approx(200)


def test_an_iteration_that_ran_something_else_is_left_out() -> None:
    entries: list[RunInstruction] = [(F, 0, 900), (B, 0, 900)]
    found = list(iterations_of(result({F: [[0.1], [0.1, 0.1]], B: [[0.2], [0.2]]}), entries))
    assert [[run.time_s for run in row] for row in found] == [[0.1, 0.2]]


def following(one: ProfilingResult, known_mhz: list[int], clocks: dict[str, list[list[int]]]) -> ProfilingResult:
    """The result of a clock process that follows the device and knows when some clocks act."""
    switching = Switching(mode="device", latencies_s=dict.fromkeys(known_mhz, 0.01))
    return one.model_copy(update={"switching": switching, "clock_breakdown": clocks})


def test_runs_at_the_default_clock_do_not_count_for_the_clock_of_the_plan() -> None:
    samples = Samples()
    samples.add(result({F: [[0.1] * 9]}), [(F, 0, 1410)] * 9)
    late = following(result({F: [[0.2] * 5 + [0.1] * 4]}), [900], {F: [[900] * 5 + [0] * 4]})
    samples.add(late, [(F, 0, 900)] * 9)
    point = samples.timed((0, F))[900]
    assert (point.count, point.time_s) == (4, pytest.approx(0.2))


def test_soon_after_a_change_to_a_clock_that_acts_at_an_unknown_time_short_runs_hardly_count() -> None:
    samples = Samples()
    samples.add(result({F: [[0.01] * 9]}), [(F, 0, 1410)] * 9)
    requested_late = {F: [[0, 900, 900, 900]] * 5}
    samples.add(following(result({F: [[0.01] * 4] * 5}), [], requested_late), [(F, 0, 900)] * 4)
    assert samples.timed((0, F))[900].time_error > 0.2
    samples.add(following(result({F: [[0.02] * 9] * 5}), [900], {F: [[900] * 9] * 5}), [(F, 0, 900)] * 9)
    assert samples.timed((0, F))[900].time_s == pytest.approx(0.02, rel=0.01)


def test_a_run_whose_clock_was_not_set_does_not_count_even_if_no_latency_is_known() -> None:
    samples = Samples()
    samples.add(result({F: [[0.1] * 9]}), [(F, 0, 1410)] * 9)
    samples.add(following(result({F: [[0.1] * 9]}), [], {F: [[900] * 2 + [0] * 7]}), [(F, 0, 900)] * 9)
    assert samples.timed((0, F))[900].count == 2


def test_a_clock_that_stays_between_iterations_has_acted_after_the_first_one_also_if_its_latency_is_unknown() -> None:
    samples = Samples()
    samples.add(result({F: [[0.01] * 9]}), [(F, 0, 1410)] * 9)
    samples.add(following(result({F: [[0.02] * 4] * 5}), [], {F: [[900] * 4] * 5}), [(F, 0, 900)] * 4)
    point = samples.timed((0, F))[900]
    assert (point.count, point.time_s) == (15, pytest.approx(0.02))
    assert point.time_error < 0.01


@pytest.mark.parametrize("last_mhz", [0, 1410])
def test_a_clock_that_was_given_up_at_the_end_of_an_iteration_acts_anew_in_the_next_one(last_mhz: int) -> None:
    samples = Samples()
    samples.add(result({F: [[0.01] * 9]}), [(F, 0, 1410)] * 9)
    samples.add(following(result({F: [[0.02] * 4] * 5}), [], {F: [[900] * 3 + [last_mhz]] * 5}), [(F, 0, 900)] * 4)
    assert samples.timed((0, F))[900].time_error > 0.2


def test_where_clocks_share_the_ticks_of_a_slow_counter_their_mean_power_is_used() -> None:
    samples = Samples()
    samples.add(result({F: [[0.1] * 9]}), [(F, 0, 1410)] * 9)
    samples.add(result({F: [[0.1] * 12]}), [(F, 0, 1410)] * 4 + [(F, 0, 1200)] * 4 + [(F, 0, 900)] * 4)
    curve = samples.curve((0, F))
    assert curve[1200].power_w > 1.5 * curve[900].power_w
    assert curve[900].power_error > 0.05
    assert (curve[1200].power_w + curve[900].power_w) / 2 == pytest.approx(300, rel=0.2)


def curve_of(clocks: list[int], noise: float = 0.0, seed: int = 0) -> dict[int, Point]:
    rng = random.Random(seed)
    curve = {}
    for mhz in clocks:
        point = Point()
        time_s, watts = 0.05 * (0.9 * 1410 / mhz + 0.1), 100 + 250 * (mhz / 1410) ** 2
        count, error = 30, max(noise, 1e-6)
        mean_s = time_s * (1 + noise * rng.gauss(0, 1))
        point.add_times(count, mean_s, error * mean_s)
        point.add_power(watts * (1 + noise * rng.gauss(0, 1)), error * watts)
        curve[mhz] = point
    return curve


def test_clocks_between_measured_ones_are_interpolated() -> None:
    curve = curve_of(list(range(1410, 600, -60)))
    true = curve_of([1380])[1380]
    guess = interpolated(curve, 1380)
    assert guess.time_s == pytest.approx(true.time_s, rel=1e-9), "a straight line over 1 / clock"
    assert guess.energy_j == pytest.approx(true.energy_j, rel=0.002)


def test_powers_are_not_guessed_where_the_clock_changed_between_ticks() -> None:
    samples = Samples()
    samples.add(result({F: [[0.01] * 20]}), [(F, 0, 1410)] * 10 + [(F, 0, 900)] * 10)
    assert not samples.curve((0, F))
    assert set(samples.timed((0, F))) == {1410, 900}


def test_waiting_is_taken_from_the_mean_power_of_short_iterations() -> None:
    samples = Samples()
    samples.waiting.add_power(80.0, 1.0)
    samples.add(result({F: [[0.01] * 20] * 5}), [(F, 0, 900)] * 20)
    assert samples.curve((0, F))[900].power_w == pytest.approx(300, rel=0.01)


def test_a_result_whose_iterations_ran_something_else_teaches_nothing() -> None:
    samples = Samples()
    samples.add(result({F: [[0.1] * 4]}), [(F, 0, 1410), (F, 0, 900)])
    assert samples.points == {}
