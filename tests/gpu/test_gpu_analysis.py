"""What the GPU measurements mean (benchmarks/gpu/analysis.py)."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.gpu.analysis import (
    Anchor,
    Step,
    Tick,
    alternating_clocks,
    boundary_errors,
    extra_cost,
    launch_order,
    mean_power_w,
    percentile,
    period_ms,
    spread,
    step_mj,
    tick_powers_w,
    to_host_ns,
)

MS = 1_000_000


def test_a_percentile_is_one_of_the_values() -> None:
    assert [percentile([4, 1, 3, 2], share) for share in (0, 0.5, 0.95, 1)] == [1, 2, 4, 4]
    assert math.isnan(percentile([], 0.5))


def test_the_spread_of_nothing_is_not_a_number() -> None:
    assert all(math.isnan(value) for value in spread([]).values())


def test_times_of_the_device_follow_the_line_through_the_anchors() -> None:
    anchors = [Anchor(0, 5_000), Anchor(100 * MS, 5_000 + 101 * MS)]
    assert to_host_ns(50 * MS, anchors) == 5_000 + 50.5 * MS


def test_anchors_that_are_close_give_no_speed() -> None:
    anchors = [Anchor(0, 0), Anchor(1_000, 9_000)]
    assert to_host_ns(2 * MS, anchors) == 2 * MS


def ticks_of(power_w: float, seen_at_s: list[float], tick_s: float = 0.1) -> list[Tick]:
    """The ticks of a counter that counts a steady power, as a reader sees them."""
    return [Tick(at_s, 0.004, 1_000_000 + round(int(at_s / tick_s) * tick_s * power_w * 1e3)) for at_s in seen_at_s]


def test_ticks_have_the_period_the_step_and_the_power_of_the_counter() -> None:
    ticks = ticks_of(400, [i / 10 + 0.002 for i in range(30)])
    assert period_ms(ticks) == pytest.approx(100)
    assert step_mj(ticks) == 40_000
    assert mean_power_w(ticks) == pytest.approx(400)
    assert tick_powers_w(ticks) == pytest.approx([400] * 29)


def test_a_tick_that_no_reading_showed_alone_does_not_change_the_period() -> None:
    assert period_ms(ticks_of(400, [i / 10 + 0.002 for i in range(30) if i not in (7, 20)])) == pytest.approx(100)


@given(st.lists(st.floats(0, 0.02), min_size=20, max_size=20))
def test_late_readings_hardly_move_the_mean_power(late_s: list[float]) -> None:
    ticks = ticks_of(400, [i / 10 + 0.001 + late for i, late in enumerate(late_s)])
    assert mean_power_w(ticks) == pytest.approx(400, rel=0.02)


def test_a_counter_that_stands_still_has_no_power() -> None:
    with pytest.raises(ValueError, match="ticked 2 times; power needs 3"):
        mean_power_w(ticks_of(400, [0.1, 0.2]))


CLOCKS = [1200, 900, 1500]


def one_step(*begins_ms: float, lasting_ms: float = 10, begin_ms: float = 0, over_ms: float = 100) -> Step:
    begins_ns = [ms * MS for ms in begins_ms]
    return Step(begin_ms * MS, over_ms * MS, begins_ns, [at_ns + lasting_ms * MS for at_ns in begins_ns])


def test_clocks_that_change_with_the_instructions_have_no_error() -> None:
    found = boundary_errors([one_step(10, 20, 30)], CLOCKS, [(10 * MS, 1200), (20 * MS, 900), (30 * MS, 1500)])
    assert (found.boundaries, found.missed, found.wrong_share) == (3, 0, 0)
    assert found.error_ms["max"] == 0


def test_early_and_late_clocks_count_by_their_distance() -> None:
    found = boundary_errors([one_step(10, 20, 30)], CLOCKS, [(12 * MS, 1200), (19 * MS, 900), (33 * MS, 1500)])
    assert found.error_ms["mean"] == pytest.approx(2.0)
    assert found.down_mean_ms == pytest.approx(0.5)  # 2 ms late, 1 ms early
    assert found.up_mean_ms == pytest.approx(3.0)
    assert found.wrong_share == pytest.approx(6 / 30)


def test_while_the_device_waits_each_time_is_as_good() -> None:
    changes = [(3 * MS, 1200), (17 * MS, 900), (40 * MS, 1500)]
    found = boundary_errors([one_step(10, 20, 40, lasting_ms=5)], CLOCKS, changes)
    assert (found.error_ms["max"], found.wrong_share) == (0, 0)


def test_a_clock_that_was_overtaken_is_missed_and_its_instruction_is_wrong_throughout() -> None:
    found = boundary_errors([one_step(10, 20, 30)], CLOCKS, [(10 * MS, 1200), (30 * MS, 1500)])
    assert (found.boundaries, found.missed) == (3, 1)
    assert found.wrong_share == pytest.approx(10 / 30)


def test_a_launch_that_runs_ahead_sets_the_last_clock_for_all() -> None:
    changes = [(1.0 * MS, 1200), (1.1 * MS, 900), (1.2 * MS, 1500)]
    found = boundary_errors([one_step(10, 20, 30)], CLOCKS, changes)
    assert found.up_mean_ms == pytest.approx(-28.8)
    assert found.wrong_share == pytest.approx(20 / 30)


def test_changes_belong_to_the_step_in_which_they_were_made() -> None:
    steps = [one_step(10, 20, 30, over_ms=50), one_step(60, 70, 80, begin_ms=50)]
    changes = [(ms * MS, mhz) for base in (0, 50) for ms, mhz in zip((base + 10, base + 20, base + 30), CLOCKS)]  # noqa: B905
    found = boundary_errors(steps, CLOCKS, changes)
    assert (found.boundaries, found.missed, found.error_ms["max"]) == (6, 0, 0)


def test_a_clock_that_is_there_when_the_step_begins_is_in_time() -> None:
    changes = [(-5.0 * MS, 1200), (20 * MS, 900), (30 * MS, 1500), (99 * MS, 1200)]
    found = boundary_errors([one_step(10, 20, 30)], CLOCKS, changes)
    assert (found.missed, found.error_ms["max"], found.wrong_share) == (0, 0, 0)


def test_clocks_that_cannot_be_told_apart_are_refused() -> None:
    with pytest.raises(ValueError, match="same clock"):
        boundary_errors([], [900, 900], [])


def test_a_step_needs_the_times_of_all_its_instructions() -> None:
    with pytest.raises(ValueError, match="2 begins for 3 instructions"):
        boundary_errors([one_step(10, 20)], CLOCKS, [])


@given(
    st.lists(st.floats(5, 20), min_size=3, max_size=3),
    st.lists(st.tuples(st.floats(1, 100 * MS), st.sampled_from([0, *CLOCKS])), max_size=12),
)
def test_the_wrong_share_is_a_share_whatever_was_set(apart_ms: list[float], changes: list[tuple[float, int]]) -> None:
    begins = [apart_ms[0], apart_ms[0] + apart_ms[1], sum(apart_ms)]
    found = boundary_errors([one_step(*begins, lasting_ms=4)], CLOCKS, sorted(changes))
    assert -1e-9 <= found.wrong_share <= 1 + 1e-9
    assert found.missed + len({mhz for _, mhz in changes if mhz}) == 3


def test_the_cost_of_marks_is_the_ratio_of_medians() -> None:
    assert extra_cost([1.1, 1.02, 9.0], [1.0, 1.0, 5.0]) == pytest.approx(0.1)


@given(st.integers(1, 5), st.integers(1, 9))
def test_stages_are_launched_in_1f1b_order_and_after_what_they_need(stages: int, microbatches: int) -> None:
    order = launch_order(stages, microbatches)
    place = {instruction: i for i, instruction in enumerate(order)}
    assert len(place) == len(order) == 2 * stages * microbatches
    for stage, name, i in order:
        needed = (stage - 1 if name == "forward" else stage + 1, name, i)
        assert place.get(needed, -1) < place[stage, name, i]
        assert place[stage, "forward", i] <= place[stage, name, i]
    first = [name for stage, name, _ in order if stage == 0]
    ahead = min(stages, microbatches)
    assert first[: ahead + 1] == ["forward"] * ahead + ["backward"]


def test_clocks_alternate_between_high_and_low_and_differ() -> None:
    clocks = alternating_clocks(range(210, 1996, 15), 16)
    assert len(set(clocks)) == 16
    assert all(high > low for high, low in zip(clocks[::2], clocks[1::2], strict=True))
    with pytest.raises(ValueError, match="3 different clocks are needed; the GPU has 2"):
        alternating_clocks([900, 1200, 900], 3)
