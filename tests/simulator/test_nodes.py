"""Iterations on simulated nodes: late clocks, and calls that wait for each other."""

from collections.abc import Sequence
from itertools import pairwise
from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pfo_fs.device.simulated.physics import PRESETS, NodePhysics
from pfo_fs.simulator.nodes import NodeIteration, NodeSettings, SimulatedNodes, Work

CLOCKS_MHZ = (1410, 1200, 1005, 900)
EXACT = NodePhysics("exact", 0.005, 0.005, True, 0.012, 0.012)


class Exact(NodePhysics):
    """A node whose calls all take the same time."""

    def call_time_s(self, mhz: int, chance: float, other_chance: float) -> float:
        return self.call_s


def pipeline(*ranks_s: Sequence[float]) -> Work:
    """Ranks whose n-th instruction waits for the n-th one of the rank before; each is one of a kind of its own."""
    count = len(ranks_s[0])
    nodes = range(len(ranks_s) * count)
    durations_s = [duration_s for rank in ranks_s for duration_s in rank]
    return Work(
        orders=[range(rank * count, (rank + 1) * count) for rank in range(len(ranks_s))],
        after=[[(node + count, 0.0)] if node + count < len(nodes) else [] for node in nodes],
        times_s=[[duration_s * (0.3 + 0.7 * 1410 / mhz) for mhz in CLOCKS_MHZ] for duration_s in durations_s],
        powers_w=[[400.0, 320.0, 250.0, 210.0] for _ in nodes],
        clocks_mhz=CLOCKS_MHZ,
        kinds=list(nodes),
        rank_of=[node // count for node in nodes],
    )


def planned_s(work: Work, clocks_mhz: Sequence[int]) -> float:
    return sum(work.times_s[node][CLOCKS_MHZ.index(mhz)] for node, mhz in enumerate(clocks_mhz))


def nodes_of(physics: NodePhysics, ranks: int = 1, **options: int) -> SimulatedNodes:
    return SimulatedNodes(NodeSettings(physics, **options), ranks, 1, CLOCKS_MHZ[0], (0, *CLOCKS_MHZ))


def run(nodes: SimulatedNodes, work: Work, clocks_mhz: Sequence[Sequence[int]], times: int = 1) -> NodeIteration:
    for _ in range(times):
        result = nodes.run(work, clocks_mhz, [1.0] * len(work.after))
        nodes.wait(0.3)
    return result


def time_s(result: NodeIteration) -> float:
    return max(result.ends_s)


@settings(max_examples=40)
@given(st.lists(st.tuples(st.sampled_from(CLOCKS_MHZ), st.floats(0.06, 0.2)), min_size=12, max_size=30))
@example([(1410, 0.125)] * 2 + [(1410, 0.125), (900, 0.125)] * 5)
def test_with_known_latencies_an_iteration_takes_as_long_as_its_plan_or_a_little_less(
    plan: list[tuple[int, float]],
) -> None:
    clocks_mhz = [1410, *(mhz for mhz, _ in plan)]  # an iteration begins at the default clock
    work = pipeline([0.1, *(duration_s for _, duration_s in plan)])
    result = run(nodes_of(Exact(*EXACT)), work, [clocks_mhz], 6)
    ideal_s = planned_s(work, clocks_mhz)
    changes = sum(before != mhz for before, mhz in pairwise(clocks_mhz))
    # A clock rises early and falls late, so the iteration is shorter by up to 1.5 ms for each change.
    assert ideal_s - 0.0015 * changes - 1e-9 <= time_s(result) <= 1.001 * ideal_s


@settings(max_examples=25)
@given(st.lists(st.tuples(st.sampled_from(CLOCKS_MHZ), st.floats(0.001, 0.2)), min_size=5, max_size=30))
@example([(1410, 0.125), (1410, 0.125), (1410, 0.125), (1005, 0.125), (1410, 0.015625)])
@example([(1410, 0.125), (1410, 0.125), (1005, 0.125), (1200, 0.001953125), (1410, 0.0625)])
def test_late_clocks_make_no_iteration_longer_than_clocks_that_act_at_once(plan: list[tuple[int, float]]) -> None:
    works_s = [duration_s for _, duration_s in plan]
    work = pipeline(works_s, [duration_s / 2 for duration_s in works_s])
    clocks_mhz = [[1410] * len(plan), [mhz for mhz, _ in plan]]
    at_once = run(nodes_of(PRESETS["none"], ranks=2), work, clocks_mhz, 6)
    late = run(nodes_of(Exact(*EXACT), ranks=2), work, clocks_mhz, 6)
    # While the call for a short instruction lasts (5 ms), the next clock cannot be set; 40 % of that may be lost.
    short = sum(duration_s < EXACT.call_s for duration_s in works_s)
    assert time_s(late) <= time_s(at_once) * 1.001 + 0.001 + 0.002 * short


def test_the_slowest_gpu_of_a_rank_decides_each_gpu_counts_and_calls_of_a_node_wait_for_each_other() -> None:
    work, nodes = pipeline([0.1] * 4), nodes_of(Exact(*EXACT), gpus_per_rank=8)
    one = run(nodes_of(Exact(*EXACT)), work, [[900] * 4], 3)
    eight = run(nodes, work, [[900] * 4], 3)
    assert time_s(eight) == pytest.approx(time_s(one), rel=0.1)
    assert sum(eight.energies_j) > 7 * sum(one.energies_j)
    assert nodes.latencies_of(0).calls.queue_ns == pytest.approx(7 * EXACT.call_s * 1e9, rel=0.15)
    alone = nodes_of(Exact(*EXACT._replace(serial=False)), gpus_per_rank=8)
    run(alone, work, [[900] * 4], 3)
    assert alone.latencies_of(0).calls.queue_ns == 0


def test_more_changes_than_the_drivers_have_room_for_are_left_out() -> None:
    clocks_mhz = [900, 1410] * 50
    work = pipeline([0.03] * 100)
    eight = run(nodes_of(Exact(*EXACT), gpus_per_rank=8), work, [clocks_mhz], 3)
    highest_s = sum(times_s[0] for times_s in work.times_s)
    assert highest_s * 0.999 <= time_s(eight) <= planned_s(work, clocks_mhz) * 1.001


@pytest.mark.parametrize("name", ["A100 node", "H100 node"])
def test_latencies_that_are_not_known_at_the_start_are_learned_in_a_sweep(name: str) -> None:
    work = pipeline([0.1] * 12)._replace(kinds=[0, 1] * 6)
    nodes = SimulatedNodes(NodeSettings(PRESETS[name]), 1, 1, CLOCKS_MHZ[0])
    for mhz in CLOCKS_MHZ:
        run(nodes, work, [[mhz] * 12], 7)
    for mhz in CLOCKS_MHZ[1:]:
        assert nodes.latencies_of(0).learned_s[mhz] == pytest.approx(PRESETS[name].latency_s(mhz), abs=0.005)


@pytest.mark.parametrize("jitter", [0.003, 0.01, 0.02])
def test_where_latencies_are_known_clocks_are_another_instructions_for_three_percent_of_the_time(jitter: float) -> None:
    """The shape of the steps that were recorded on an H200: 13 and 33 ms by turns, each at another clock."""
    random, wrong_s, all_s = Random(1), 0.0, 0.0
    work = pipeline([0.013, 0.033] * 6)._replace(kinds=[0, 1] * 6)
    nodes = nodes_of(NodePhysics("H200", 0.0001, 0.0003, False, 0.005, 0.005))
    clocks_mhz = [CLOCKS_MHZ[1 + place % 3] for place in range(12)]
    for step in range(40):
        result = nodes.run(work, [clocks_mhz], [random.gauss(1, jitter) for _ in clocks_mhz])
        nodes.wait(0.003)
        if step >= 20:
            wrong_s, all_s = wrong_s + result.wrong_s, all_s + time_s(result)
    assert wrong_s / all_s <= 0.031
