"""From marks and counter readings to time and energy."""

import math

import pytest
from clock import replace_time

from pfo_fs.device import shared_page
from pfo_fs.device.metering import step_metrics
from pfo_fs.device.metering.energy_curve import EnergyCurve
from pfo_fs.device.metering.meter import Measured, StepMeter
from pfo_fs.device.metering.step_metrics import Readings, StepMetrics
from pfo_fs.device.shared_page import WORDS, SharedPage

MS = 1_000_000
Mark = tuple[int, int]


def step_marks(begin_ms: int, step: int, number: int, instructions: list[tuple[int, int, int]], end_ms: int,
               strayed: bool = False, until: int = 0) -> list[Mark]:  # fmt: skip
    """Marks of one step; instructions are (name's place, begin ms, end ms)."""
    marks = [(begin_ms * MS, shared_page.STEP_BEGIN | step << 8), (number, shared_page.NUMBER | until << 8)]
    for place, t0, t1 in instructions:
        marks += [(t0 * MS, shared_page.BEGIN | place << 8), (t1 * MS, shared_page.END | place << 8)]
    return [*marks, (end_ms * MS, shared_page.STEP_END | (shared_page.STRAYED if strayed else 0) << 8)]


def results(meter: StepMeter, marks: list[Mark]) -> list[Measured]:
    return [item for item in meter.take(marks) if item is not None]


def new_meter(profile_steps: int = 1, least_s: float = 0.0) -> StepMeter:
    names = SharedPage.create()
    names.name_id("forward")
    names.name_id("backward")
    return StepMeter(profile_steps, names.name, least_s)


def at_100_w() -> StepMeter:
    """A meter that knows the energy of ten seconds at 100 W."""
    meter = new_meter()
    meter.curve.add(0, 0.0)
    meter.curve.add(10_000 * MS, 1000.0)
    return meter


def test_a_known_power_curve_is_interpolated_between_readings() -> None:
    """Power 100 W + 50 W * sin(2 pi t), read every 20 ms: stretches of 7 ms come out within 1 %."""

    def energy_j(t_s: float) -> float:
        return 100 * t_s + 50 * (1 - math.cos(2 * math.pi * t_s)) / (2 * math.pi)

    curve = EnergyCurve()
    for i in range(101):
        curve.add(i * 20 * MS, energy_j(i * 0.02))
    for t_ms in range(13, 1900, 61):
        true_j = energy_j((t_ms + 7) / 1000) - energy_j(t_ms / 1000)
        assert curve.at((t_ms + 7) * MS) - curve.at(t_ms * MS) == pytest.approx(true_j, rel=0.04)
    assert curve.at(2000 * MS) == pytest.approx(energy_j(2.0))


def test_the_first_step_after_a_switch_is_left_out_and_the_next_ones_are_measured() -> None:
    meter = new_meter(profile_steps=2)
    for i in range(200):
        meter.curve.add(i * 10 * MS, i * 2.0)  # 200 W
    instructions = [(0, 10, 30), (1, 30, 70)]
    found: list[Measured] = []
    for step in range(4):
        shifted = [(place, t0 + step * 100, t1 + step * 100) for place, t0, t1 in instructions]
        found += results(meter, step_marks(step * 100, step, 7, shifted, step * 100 + 90))
    assert [(one.number, one.first_step, len(one.steps)) for one in found] == [(7, 1, 2)]
    result = found[0].report(3).result
    assert result["rank"] == 3
    assert result["iter_step"] == [1, 2]
    assert result["iter_time"] == pytest.approx([0.09, 0.09])
    assert result["iter_energy"] == pytest.approx([18.0, 18.0])
    assert result["time_breakdown"]["forward"] == [pytest.approx([0.02]), pytest.approx([0.02])]
    assert result["energy_breakdown"]["backward"] == [pytest.approx([8.0]), pytest.approx([8.0])]
    assert meter.done_number == 7


@pytest.mark.parametrize("first", [3, 6])
def test_a_result_in_turns_ends_with_the_step_before_their_end_and_keeps_the_energy_of_each_step(first: int) -> None:
    meter = new_meter(profile_steps=2)
    for i in range(400):
        meter.curve.add(i * 10 * MS, i * 10.0 if i // 10 % 2 else i * 10.0 + (i % 10) * 1.0)
    found: list[Measured] = []
    for step in range(first, 30):  # a late rank begins later, and ends with the others
        found += results(
            meter, step_marks(step * 100, step, 7, [(0, step * 100 + 5, step * 100 + 80)], step * 100 + 90, until=12)
        )
    (one,) = found
    assert [step.step for step in one.steps] == list(range(first + 1, 12))
    energies = [step.energy_j for step in one.steps]
    assert energies == pytest.approx([90.0 if step % 2 else 99.0 for step in range(first + 1, 12)])


def test_a_step_that_strayed_or_has_no_end_and_lost_marks_are_no_result() -> None:
    meter = at_100_w()
    results(meter, step_marks(0, 0, 1, [], 50))
    assert results(meter, step_marks(60, 1, 1, [], 90, strayed=True)) == []
    assert meter.last_step.step == 1, "it is progress"
    assert results(meter, step_marks(100, 2, 1, [(0, 110, 120)], 150)[:-1]) == []
    meter.lost()
    assert results(meter, [(150 * MS, shared_page.STEP_END)]) == []
    found = results(meter, step_marks(200, 3, 1, [(0, 210, 220)], 250))
    assert found[0].report(0).result["time_breakdown"] == {"forward": [[0.01]]}


def test_nested_instructions_end_the_innermost_of_their_name() -> None:
    meter = at_100_w()
    results(meter, step_marks(0, 0, 1, [], 1))
    marks = step_marks(100, 1, 1, [], 200)
    marks[2:2] = [
        (110 * MS, shared_page.BEGIN | 0 << 8),
        (120 * MS, shared_page.BEGIN | 1 << 8),
        (150 * MS, shared_page.END | 1 << 8),
        (160 * MS, shared_page.END | 0 << 8),
        (170 * MS, shared_page.END | 0 << 8),  # never began
    ]
    times = results(meter, marks)[0].report(0).result["time_breakdown"]
    assert times == {"forward": [[0.05]], "backward": [[0.03]]}


def at_200_w() -> StepMeter:
    """A meter whose counter ticks every 100 ms, and was read for 300 ms."""
    meter = new_meter()
    for t_ms in range(3, 300, 20):
        meter.curve.add(t_ms * MS, t_ms // 100 * 100 * 0.2)
    return meter


def test_a_counter_that_fails_is_not_waited_for_and_what_is_not_known_is_no_result() -> None:
    meter = at_200_w()
    marks = step_marks(100, 0, 1, [], 500) + step_marks(500, 1, 1, [], 960)
    assert results(meter, marks) == []
    meter.curve.break_off()
    assert results(meter, []) == []
    assert (meter.last_step.step, meter.last_step.energy_j) == (1, 0.0)


def test_after_a_gap_of_the_counter_only_steps_that_begin_later_have_energy() -> None:
    meter = at_200_w()
    meter.curve.break_off()
    for t_ms in range(1000, 3000, 20):
        meter.curve.add(t_ms * MS, 77.0 + 0.1 * t_ms)
    found = []
    for step in range(6):
        begin = 100 + 400 * step
        found += results(meter, step_marks(begin, step, 1, [], begin + 400))
    assert [(one.first_step, one.steps[0].energy_j) for one in found] == [(4, pytest.approx(40, rel=0.01))]


def test_the_span_of_a_step_ends_with_its_last_instruction() -> None:
    meter = new_meter()
    marks = step_marks(0, 0, 1, [(0, 10, 60)], 100)
    marks.insert(-1, (60 * MS, shared_page.LAST_END))
    results(meter, marks)
    assert list(meter.pace) == [(0, 1, pytest.approx(0.06))]
    assert meter.last_step.time_s == pytest.approx(0.1)


def test_where_ticks_are_farther_apart_than_steps_nothing_from_before_the_window_counts() -> None:
    """Steps of a forward at 300 W and a backward at 100 W, of equal length, after a time at 500 W."""
    meter, switch_ms, step_ms = new_meter(profile_steps=2), 2500, 180

    def energy_j(t_ms: float) -> float:
        steps, rest = divmod(max(0.0, t_ms - switch_ms), step_ms)
        begun_j = 0.3 * min(rest, step_ms / 2) + 0.1 * max(0.0, rest - step_ms / 2)
        return 0.5 * min(t_ms, switch_ms) + steps * 0.2 * step_ms + begun_j

    for t_ms in range(3, switch_ms + 100 * step_ms, 2):
        meter.curve.add(t_ms * MS, energy_j(t_ms // 1000 * 1000))
    found: list[Measured] = []
    for step in range(60):
        begin, half = switch_ms + step * step_ms, step_ms // 2
        instructions = [(0, begin, begin + half), (1, begin + half, begin + step_ms)]
        found += results(meter, step_marks(begin, step, 1, instructions, begin + step_ms))
    energies_j = [step.energy_j for step in found[0].steps]
    assert sum(energies_j) == pytest.approx(0.2 * step_ms * len(energies_j), rel=0.04)
    assert sum(step.energies["forward"][0] for step in found[0].steps) < sum(energies_j)


def test_short_steps_are_measured_for_the_least_time_but_only_for_so_many_of_them() -> None:
    for least_s, count in ((0.0, 2), (0.5, 6), (60.0, 16)):
        meter = new_meter(2, least_s)
        meter.curve.break_off()
        found: list[Measured] = []
        for step in range(30):
            found += results(meter, step_marks(100 * step, step, 1, [], 100 * step + 90))
        assert [len(one.steps) for one in found] == [count]


def test_steps_while_clocks_are_held_at_their_default_are_not_measured() -> None:
    meter = at_100_w()

    def step(number: int) -> list[Measured]:
        begin = 10 * number
        return results(meter, step_marks(begin, number, 3, [(0, begin, begin + 5)], begin + 9))

    step(0)
    meter.held = True
    assert not any(step(number) for number in range(1, 6))
    assert meter.last_step.step == 5, "progress is reported all the same"
    meter.held = False
    assert not step(6), "the first one may have begun while clocks were held"
    assert [measured.first_step for measured in step(7)] == [7]
    assert meter.total_j == pytest.approx(8 * 0.9), "the energy so far is that of all steps"


S = 1_000_000_000


class Gpu:
    """A GPU whose power depends on its clock; `run` lets time pass, with a reading at its end."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_ns, self.energy_j = 100 * S, 5000.0
        replace_time(monkeypatch, step_metrics.__name__, monotonic_ns=lambda: self.now_ns)
        self.words = memoryview(bytearray(WORDS * 8)).cast("q")
        self.readings = Readings(self.words, 1400)
        self.readings.write(self.now_ns, self.energy_j)

    def run(self, seconds: float, watts: float) -> None:
        self.now_ns += round(seconds * S)
        self.energy_j += seconds * watts
        self.readings.write(self.now_ns, self.energy_j)

    def clock(self, mhz: int) -> None:
        self.readings.clock_set(self.now_ns, mhz)


def test_numbers_are_averages_over_the_steps_since_the_last_call(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Gpu(monkeypatch)
    metrics = StepMetrics([gpu.words])
    assert metrics.since_last(1400) == {}
    metrics.step_begins()
    for _ in range(4):
        gpu.run(2.0, 400.0)
        metrics.step_begins()
    at_top = {"step_time_s": 2.0, "power_w": 400.0, "energy_j": 800.0, "clock_mhz": 1400.0, "saving": 0.0}
    assert metrics.since_last(1400) == pytest.approx({f"pfo_fs/{key}": value for key, value in at_top.items()})
    gpu.clock(1000)
    for _ in range(2):
        gpu.run(2.5, 240.0)
        metrics.pause()
        gpu.run(60.0, 50.0)  # an evaluation
        metrics.resume()
        metrics.step_begins()
    lower = {"step_time_s": 2.5, "power_w": 240.0, "energy_j": 600.0, "clock_mhz": 1000.0, "saving": 0.25}
    for _ in range(2):  # without a step and a reading in between, the numbers stay
        assert metrics.since_last(1400) == pytest.approx({f"pfo_fs/{key}": value for key, value in lower.items()})


def test_without_a_reading_there_is_only_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    times_ns = iter((S, 2 * S, 3 * S))
    replace_time(monkeypatch, step_metrics.__name__, monotonic_ns=lambda: next(times_ns))
    metrics = StepMetrics([memoryview(bytearray(WORDS * 8)).cast("q")])
    for _ in range(3):
        metrics.step_begins()
    assert metrics.since_last(1400) == {"pfo_fs/step_time_s": 1.0}
