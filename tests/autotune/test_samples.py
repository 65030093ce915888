"""From results to what is known of each instruction at each clock."""

from collections.abc import Sequence
from io import StringIO
from statistics import fmean

import pandas as pd
import pytest

from pfo_fs.autotune.job_layout import Kind, RunInstruction, numbered_iterations
from pfo_fs.autotune.samples import Point, Samples
from pfo_fs.models import InstructionPower, ProfilingResult

F, B = "forward", "backward"


def result(times: dict[str, list[list[float]]], powers: list[InstructionPower] | None = None) -> ProfilingResult:
    busy_s = [sum(map(sum, rows)) for rows in zip(*times.values(), strict=True)]
    energies = {name: [[300 * time_s for time_s in row] for row in rows] for name, rows in times.items()}
    return ProfilingResult(
        rank=0,
        iter_time=[1.0 + each_s for each_s in busy_s],
        iter_energy=[80.0 + 300 * each_s for each_s in busy_s],
        time_breakdown=times,
        energy_breakdown=energies,
        powers=powers or [],
    )


def add(samples: Samples, found: ProfilingResult, ran: Sequence[RunInstruction]) -> None:
    """Adds the mean times of a result, then its powers."""
    durations: dict[tuple[Kind, int], list[float]] = {}
    for _, runs in numbered_iterations(found, ran):
        for (name, stage, mhz), run in zip(ran, runs, strict=True):
            durations.setdefault(((stage, name), mhz), []).append(run.time_s)
    for key, each in durations.items():
        samples.point(*key).add_times(len(each), fmean(each), 0.001 * fmean(each))
    samples.add_powers(found, ran, 1410)


def power(name: str, mhz: int, watts: float, error: float = 1.0) -> InstructionPower:
    return InstructionPower(instruction=name, frequency=mhz, power=watts, error=error, seconds=5)


def test_fitted_powers_win_over_the_mean_of_iterations() -> None:
    samples = Samples()
    found = result({F: [[0.1] * 10], B: [[0.1] * 10]}, [power(F, 900, 250.0), power("", 0, 80.0)])
    add(samples, found, [(F, 0, 900)] * 10 + [(B, 0, 900)] * 10)
    assert samples.curve((0, F))[900].power_w == pytest.approx(250)
    assert samples.curve((0, B))[900].power_w == pytest.approx(300, rel=0.01)
    assert samples.curve((0, B))[900].power_error > 0.04
    assert samples.waiting.power_w == pytest.approx(80)


def test_better_known_powers_weigh_more() -> None:
    samples = Samples()
    for watts, error in ((200.0, 1.0), (230.0, 20.0)):
        add(samples, result({F: [[0.1] * 5]}, [power(F, 900, watts, error)]), [(F, 0, 900)] * 5)
    assert samples.curve((0, F))[900].power_w == pytest.approx(200, abs=0.5)


def test_an_iteration_that_ran_something_else_is_left_out() -> None:
    entries: list[RunInstruction] = [(F, 0, 900), (B, 0, 900)]
    found = list(numbered_iterations(result({F: [[0.1], [0.1, 0.1]], B: [[0.2], [0.2]]}), entries))
    assert [[run.time_s for run in row] for _, row in found] == [[0.1, 0.2]]


def test_where_clocks_share_the_ticks_of_a_slow_counter_their_mean_power_is_used() -> None:
    samples = Samples()
    add(samples, result({F: [[0.1] * 9]}), [(F, 0, 1410)] * 9)
    add(samples, result({F: [[0.1] * 12]}), [(F, 0, 1410)] * 4 + [(F, 0, 1200)] * 4 + [(F, 0, 900)] * 4)
    curve = samples.curve((0, F))
    assert curve[1200].power_w > 1.5 * curve[900].power_w
    assert curve[900].power_error > 0.05
    assert (curve[1200].power_w + curve[900].power_w) / 2 == pytest.approx(300, rel=0.2)


def test_powers_are_not_guessed_where_the_clock_changed_between_ticks() -> None:
    samples = Samples()
    add(samples, result({F: [[0.01] * 20]}), [(F, 0, 1410)] * 10 + [(F, 0, 900)] * 10)
    assert not samples.curve((0, F))
    assert set(samples.timed((0, F))) == {1410, 900}


def test_waiting_is_taken_from_the_mean_power_of_short_iterations() -> None:
    samples = Samples()
    samples.waiting.add_power(80.0, 1.0)
    add(samples, result({F: [[0.01] * 20] * 5}), [(F, 0, 900)] * 20)
    assert samples.curve((0, F))[900].power_w == pytest.approx(300, rel=0.01)


def test_points_are_written_with_their_errors_and_counts_but_for_those_whose_power_is_hardly_known() -> None:
    samples = Samples()
    for mhz, time_s, power_error_w in ((1410, 0.1, 0.5), (1395, 0.12, 0.5), (1380, 0.13, 150.0)):
        point = samples.points.setdefault((0, "forward"), {})[mhz] = Point()
        point.add_times(50, time_s, 0.001 * time_s)
        point.add_power(200.0, power_error_w)
    samples.waiting.add_power(83.64, 0.1)
    rows = pd.read_csv(StringIO(samples.csv())).set_index("frequency")
    assert list(rows.index) == [1410, 1395]
    for mhz, row in rows.iterrows():
        point = samples.points[0, "forward"][mhz]
        assert row["count"] == point.count
        assert row["waiting_power"] == 83.64
        assert row["time_error"] == pytest.approx(point.time_error, rel=1e-5)
        assert row["power_error"] == pytest.approx(point.power_error, rel=1e-5)
        assert row["energy"] == pytest.approx(point.energy_j, rel=1e-5)
