"""Pipelines: the orders of the known schedules, and DAGs given as data."""

from collections import Counter
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pfo_fs.errors import ConfigError, PlanError
from pfo_fs.planner import Dependency, Instruction, Pipeline, make_pipeline, pipeline_from_torch
from pfo_fs.planner.longest_paths import LongestPaths
from pfo_fs.planner.pipeline_schedules import SCHEDULES

shapes = st.tuples(st.sampled_from(sorted(SCHEDULES)), st.integers(1, 6), st.integers(1, 4))


def make(shape: tuple[str, int, int]) -> Pipeline:
    schedule, ranks, rounds = shape
    stages = 2 * ranks if schedule in ("interleaved", "zb-v") else ranks
    return make_pipeline(schedule, stages, ranks * rounds, num_ranks=ranks).with_delay(0.001)


@given(shapes)
def test_every_microbatch_goes_forward_and_gets_its_gradient_once_on_every_stage(shape: tuple[str, int, int]) -> None:
    pipeline = make(shape)
    for names in ({"forward"}, {"backward", "backward_input", "forward_backward"}):
        seen = Counter((i.stage, i.microbatch) for i in pipeline.instructions if i.name in names)
        assert set(seen.values()) == {1}
        assert len(seen) == pipeline.num_stages * pipeline.num_microbatches


@given(shapes)
def test_nothing_runs_before_what_it_waits_for_and_delays_are_between_ranks_only(shape: tuple[str, int, int]) -> None:
    pipeline = make(shape)
    place = {node: number for number, node in enumerate(pipeline.topological)}
    assert sorted(place) == list(range(len(pipeline.instructions)))
    rank_of = [rank for rank, order in enumerate(pipeline.orders) for _ in order]
    for before, after, delay_s in pipeline.edges:
        assert place[before] < place[after]
        assert delay_s == (0.001 if rank_of[before] != rank_of[after] else 0.0)
    for dependency in pipeline.dependencies:  # implied or not, all hold
        assert place[pipeline.position[dependency.before]] < place[pipeline.position[dependency.after]]


def test_1f1b_of_two_stages_and_three_microbatches_is_as_in_the_books() -> None:
    orders = [[f"{i.name[0]}{i.microbatch}" for i in order] for order in make_pipeline("1f1b", 2, 3).orders]
    assert orders == ["f0 f1 b0 f2 b1 b2".split(), "f0 b0 f1 b1 f2 b2".split()]


def test_zb_h1_fills_the_bubble_of_1f1b_with_weight_gradients() -> None:
    def length(pipeline: Pipeline, seconds: dict[str, float]) -> float:
        times_s = np.array([[seconds[instruction.name]] for instruction in pipeline.instructions], float)
        return float(LongestPaths(pipeline.topological, pipeline.edges).ends(times_s).ends_s.max())

    plain = length(make_pipeline("1f1b", 4, 12), {"forward": 1, "backward": 2})
    split = length(make_pipeline("zb-h1", 4, 12), {"forward": 1, "backward_input": 1, "backward_weight": 1})
    assert (plain, split) == (3 * 15, 3 * 12 + 3)  # bubbles of 3 (F + B) and 3 (F + I - W)


def test_early_recomputation_recomputes_apart_only_in_the_cool_down() -> None:
    order = make_pipeline("early-recomputation", 4, 6).orders[1]
    assert [i.name for i in order[-4:]] == ["recomputation", "backward"] * 2
    assert not any(i.name == "recomputation" for i in make_pipeline("early-recomputation", 4, 6).orders[3])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("2f2b", 2, 2), "there is no schedule '2f2b'"),
        (("1f1b", 0, 2), "0 stages"),
        (("zb-v", 3, 8), "3 is odd"),
        (("interleaved", 4, 4), "needs the number of ranks .*--num-ranks"),
        (("interleaved", 8, 9, 4), "multiple of 4"),
    ],
)
def test_a_schedule_that_does_not_exist_is_refused(arguments: tuple[Any, ...], message: str) -> None:
    schedule, stages, microbatches, *ranks = arguments
    with pytest.raises(ConfigError, match=message):
        make_pipeline(schedule, stages, microbatches, num_ranks=ranks[0] if ranks else None)


def test_any_dag_can_be_given_as_data() -> None:
    load, first, second = Instruction(0, "load", 0), Instruction(0, "forward", 0), Instruction(1, "forward", 0)
    pipeline = Pipeline(((load, first), (second,)), (Dependency(load, second, 0.5),))
    assert pipeline.edges == ((0, 1, 0.0), (0, 2, 0.5))


@pytest.mark.parametrize(
    ("orders", "dependencies", "message"),
    [
        ([[(0, "f", 0), (0, "f", 0)]], [], "is listed 2 times"),
        ([[(0, "f", 0)], []], [], "at least one instruction"),
        ([[(0, "f", 0)]], [((0, "f", 0), (1, "f", 0), 0.0)], "which no rank runs"),
        ([[(0, "f", 0), (0, "g", 0)]], [((0, "g", 0), (0, "f", 0), 0.0)], "go in a circle"),
        ([[(0, "f", 0)], [(1, "f", 0)]], [((0, "f", 0), (1, "f", 0), -1.0)], "must be finite, 0 or more"),
    ],
)
def test_a_dag_that_cannot_run_is_refused(orders: list, dependencies: list, message: str) -> None:
    rows = tuple(tuple(Instruction(*step) for step in order) for order in orders)
    edges = tuple(Dependency(Instruction(*a), Instruction(*b), delay_s) for a, b, delay_s in dependencies)
    with pytest.raises(PlanError, match=message):
        Pipeline(rows, edges)


# ---- torch.distributed.pipelining


def torch_schedule(name: str, ranks: int, microbatches: int) -> object:
    from torch.distributed.pipelining import schedules

    cls = schedules.get_schedule_class(name)
    multi = issubclass(cls, schedules.PipelineScheduleMulti)
    stages = 2 * ranks if multi else ranks
    indices = [0, stages - 1] if name in ("ZBVZeroBubble", "DualPipeV") else list(range(0, stages, ranks))
    same = {"num_stages": stages, "group_rank": 0, "group_size": ranks, "group": None, "submod": None}
    local = [
        SimpleNamespace(stage_index=index, is_first=index == 0, is_last=index == stages - 1, has_backward=True, **same)
        for index in indices
    ]
    return cls(local if multi else local[0], microbatches, loss_fn=lambda *_: 0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("theirs", "ours"),
    [("1F1B", "1f1b"), ("GPipe", "gpipe"), ("Interleaved1F1B", "interleaved"), ("ZBVZeroBubble", "zb-v")],
)
@pytest.mark.parametrize("ranks", [2, 4])
def test_our_orders_are_those_of_torch(theirs: str, ours: str, ranks: int) -> None:
    handed_in = pipeline_from_torch(torch_schedule(theirs, ranks, 8))
    assert handed_in.orders == make_pipeline(ours, handed_in.num_stages, 8, num_ranks=ranks).orders


@pytest.mark.slow
@pytest.mark.parametrize("name", ["InterleavedZeroBubble", "DualPipeV", "LoopedBFS"])
def test_schedules_that_only_torch_knows_are_taken_as_they_are(name: str) -> None:
    pipeline = pipeline_from_torch(torch_schedule(name, 4, 8))
    assert pipeline.num_stages == 8
    assert len(pipeline.topological) == len(pipeline.instructions)


def test_what_is_no_schedule_is_refused() -> None:
    with pytest.raises(PlanError, match="has no pipeline_order"):
        pipeline_from_torch(SimpleNamespace())
