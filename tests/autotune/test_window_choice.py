"""Which clocks the next window measures."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from curve_points import CLOCKS, follows, points_of

from pfo_fs.autotune.clock_curves import ClockCurves, fit_curves
from pfo_fs.autotune.instruction_runs import Kind
from pfo_fs.autotune.window_choice import StageRun, candidates_of, iteration_s, next_clocks, time_and_power_errors

B, F = "backward", "forward"


def stages_of(number: int, microbatches: int) -> list[StageRun]:
    return [StageRun({(stage, F): microbatches, (stage, B): microbatches}, CLOCKS) for stage in range(number)]


def believed(
    stages: Sequence[StageRun], lower: Sequence[Sequence[int]] = (), lengths: Sequence[int] = ()
) -> list[ClockCurves]:
    """What is believed after windows at the highest clock and at lower ones."""

    def truth(kind: Kind, mhz: int) -> tuple[float, float]:
        time_s, power_w = follows(0.8)((0, F), mhz)
        return time_s * (lengths[kind[0]] if lengths else 1), power_w

    where: dict[Kind, list[int]] = {}
    for number, stage in enumerate(stages):
        for kind in stage.kinds:
            where[kind] = [1410, *(lower[number] if lower else ())]
    candidates = candidates_of(CLOCKS, 0.6)
    return fit_curves(points_of(truth, where), dict.fromkeys(where, candidates))


def test_a_window_keeps_to_its_budget_of_time() -> None:
    stages = stages_of(4, 24)
    curves = believed(stages)
    table = {kind: rows for group in curves for kind, rows in group.table().items()}
    chosen = next_clocks(stages, curves, 5, True, 0.08)
    full_s = iteration_s(stages, [[1410]] * 4, table)
    assert any(chosen)
    assert iteration_s(stages, [[1410, *clocks] for clocks in chosen], table) <= 1.08 * full_s
    assert all(len(clocks) <= 4 and 1410 not in clocks for clocks in chosen)


def test_stages_with_slack_go_lower_than_the_one_that_they_wait_for() -> None:
    stages = stages_of(4, 96)
    chosen = next_clocks(stages, believed(stages, lengths=[1, 1, 3, 1]), 4, True, 0.04)
    assert min(chosen[2], default=1410) > min(mhz for number in (0, 1, 3) for mhz in chosen[number])


def test_stages_that_are_alike_share_the_clocks_out() -> None:
    stages = stages_of(4, 4)
    chosen = next_clocks(stages, believed(stages, [[1200], [1080], [1320], [960]]), 1, False, 1.0)
    assert len({clocks[0] for clocks in chosen if clocks}) >= 3


def test_a_clock_that_was_measured_is_not_measured_again_before_others() -> None:
    stages = stages_of(1, 24)
    chosen = next_clocks(stages, believed(stages, [[1320, 1140]]), 3, True, 1.0)
    assert not {1320, 1140} & set(chosen[0])


def test_a_clock_that_the_plan_uses_is_preferred() -> None:
    stages = stages_of(1, 24)
    curves = believed(stages)
    ((without,),) = next_clocks(stages, curves, 1, False, 1.0)
    used = candidates_of(CLOCKS, 0.6)[-1]
    ((chosen,),) = next_clocks(stages, curves, 1, False, 1.0, {((0, F), used): 20.0, ((0, B), used): 20.0})
    assert chosen < without


def test_nothing_is_measured_where_no_time_may_be_lost() -> None:
    stages = stages_of(4, 24)
    assert next_clocks(stages, believed(stages), 4, True, -0.5) == [[], [], [], []]


def test_errors_fall_with_each_window() -> None:
    stages = stages_of(4, 24)
    few = time_and_power_errors(believed(stages, [[1200]] * 4))
    more = time_and_power_errors(believed(stages, [[1350, 1200, 1050]] * 4))
    assert more[0] < few[0]
    assert more[1] < few[1]


@pytest.mark.parametrize("count", [1, 8, 40, 120])
def test_few_candidates_are_considered_of_any_number_of_clocks(count: int) -> None:
    clocks = [1410 - 5 * number for number in range(count)]
    candidates = candidates_of(clocks, 0.5)
    assert candidates == sorted(set(candidates), reverse=True)
    assert (candidates[0], candidates[-1]) == (clocks[0], clocks[-1])
    assert min(count, 8) <= len(candidates) <= 24
