"""What a simulated node does to changes of the clock."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pfo_fs.device.simulated.node_physics import PRESETS, NodePhysics, node_physics
from pfo_fs.device.simulated.physics import A100
from pfo_fs.errors import ConfigError


@pytest.mark.parametrize("node", PRESETS.values(), ids=list(PRESETS))
def test_calls_take_as_long_as_published(node: NodePhysics) -> None:
    rnd = Random(1)
    took_s = sorted(node.call_time_s(rnd.random(), rnd.random()) for _ in range(20_000))
    assert took_s[10_000] == pytest.approx(node.call_s, rel=0.05)
    assert took_s[19_800] == pytest.approx(node.slow_call_s, rel=0.25)


@given(st.floats(0, 1), st.floats(0, 1))
def test_a_call_takes_a_time_that_is_positive_and_bounded(chance: float, other: float) -> None:
    for node in PRESETS.values():
        assert 0 <= node.call_time_s(chance, other) < 1


@given(st.integers(0, 60_000))
def test_a_clock_acts_within_the_times_of_the_node(mhz: int) -> None:
    for node in PRESETS.values():
        assert node.least_latency_s <= node.latency_s(mhz) <= node.most_latency_s + 1e-12


def test_the_time_until_a_clock_acts_depends_on_the_clock_without_an_order() -> None:
    node = PRESETS["A100 node"]
    times_s = [node.latency_s(mhz) for mhz in A100.clocks_mhz]
    assert max(times_s) > 5 * min(times_s)
    assert sorted(times_s) != times_s
    assert sorted(times_s, reverse=True) != times_s


def test_a_node_without_a_name_of_ours_is_an_error_that_lists_the_names() -> None:
    with pytest.raises(ConfigError, match=r"'DGX'.*A100 node"):
        node_physics("DGX")
    assert node_physics("kind").latency_s(900) == 0.010
