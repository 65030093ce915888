"""When clocks act, learned from what instructions take around changes of the clock."""

import random
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pfo_fs.device.clocks.driver_calls import DriverCalls
from pfo_fs.device.clocks.latency_model import SETTLED_NS, LatencyModel

MS = 1_000_000
CALL_NS = 5 * MS
FAST_NS, SLOW_NS = 100 * MS, 140 * MS  # at 1410 and at 900 MHz


class Bench:
    """A GPU's clocks and instructions, in virtual time.

    Attributes:
        model: What is learned; it knows what instruction 0 takes at 1410 and at 900 MHz.
    """

    def __init__(self, known_ns: Mapping[int, int] | None = None, tp_degree: int = 1, *, steady: bool = True) -> None:
        self.model = LatencyModel(DriverCalls(CALL_NS), known_ns, 1410, tp_degree)
        self.now_ns = 0
        for _ in range(5 if steady else 0):
            self.steadily(0, 1410, FAST_NS)
            self.steadily(0, 900, SLOW_NS)

    def steadily(self, kind: int, mhz: int, took_ns: int) -> None:
        """An instruction that runs when nothing but its clock can be in force."""
        self.settle(mhz)
        self.model.ran(kind, self.now_ns, self.now_ns + took_ns)
        self.now_ns += took_ns

    def settle(self, mhz: int) -> None:
        """Sets a clock and waits until it has acted in any case."""
        self.set(mhz)
        self.now_ns += SETTLED_NS + MS

    def set(self, mhz: int, waited_ns: int = 0) -> None:
        self.model.calls.called(self.now_ns, CALL_NS, waited_ns)
        self.model.clock_was_set(self.now_ns, mhz, waited_ns)

    def change(self, from_mhz: int, mhz: int, took_ns: int, after_ns: int = 0, kind: int = 0) -> None:
        """A change of the clock, and an instruction that begins so long after the call has returned."""
        self.settle(from_mhz)
        self.set(mhz)
        self.now_ns += after_ns
        self.model.ran(kind, self.now_ns, self.now_ns + took_ns)
        self.now_ns += took_ns

    def middle_ns(self, mhz: int) -> int:
        return self.model.latency(mhz).middle_ns


def took(late_ns: float, own_ns: int, other_ns: int) -> int:
    """The duration of an instruction whose clock changes this long after its begin."""
    return round(late_ns + (1 - late_ns / other_ns) * own_ns)


@given(st.integers(0, 85 * MS), st.booleans())
def test_an_instruction_shows_when_its_clock_acted(acts_ns: int, up: bool) -> None:
    bench = Bench()
    own_mhz, other_mhz, own_ns, other_ns = (1410, 900, FAST_NS, SLOW_NS) if up else (900, 1410, SLOW_NS, FAST_NS)
    for _ in range(4):
        bench.change(other_mhz, own_mhz, took(acts_ns, own_ns, other_ns))
    latency = bench.model.latency(own_mhz)
    assert latency.middle_ns == pytest.approx(acts_ns, abs=1.5 * MS)
    assert latency.low_ns <= acts_ns + MS
    assert acts_ns <= latency.high_ns + MS
    assert bench.model.learned_s[own_mhz] == pytest.approx(latency.high_ns / 1e9, abs=1e-6)


@pytest.mark.parametrize(
    ("returns_ms", "acts_ms", "low_ms", "high_ms"),
    [(100, 110, 8, 12), (100, 170, 30, 999), (50, 47, 0, 1)],  # before the end, after it, before the call returns
)
def test_the_next_clock_shows_in_an_instruction(returns_ms: int, acts_ms: int, low_ms: int, high_ms: int) -> None:
    bench = Bench()
    for _ in range(20):
        bench.settle(900)
        began_ns = bench.now_ns
        bench.now_ns += returns_ms * MS
        bench.set(1410)
        bench.now_ns = began_ns + took(min(acts_ms * MS, SLOW_NS), FAST_NS, SLOW_NS)
        bench.model.ran(0, began_ns, bench.now_ns)
    assert low_ms * MS <= bench.middle_ns(1410) <= high_ms * MS


@pytest.mark.parametrize("up", [True, False])
def test_of_gpus_that_compute_together_the_first_one_slows_down_and_the_last_one_speeds_up(up: bool) -> None:
    bench = Bench(tp_degree=8)
    bench.model.calls.gpus = 8
    own_mhz, other_mhz, own_ns, other_ns = (1410, 900, FAST_NS, SLOW_NS) if up else (900, 1410, SLOW_NS, FAST_NS)
    for _ in range(6):
        bench.settle(other_mhz)
        began_ns = bench.now_ns
        bench.now_ns += 8 * CALL_NS
        bench.set(own_mhz, 7 * CALL_NS)  # the last one of eight
        took_ns = took((8 * CALL_NS if up else CALL_NS) + 20 * MS, own_ns, other_ns)
        bench.model.ran(0, began_ns, began_ns + took_ns)
        bench.now_ns = began_ns + took_ns
    assert bench.middle_ns(own_mhz) == pytest.approx(20 * MS, abs=1.5 * MS)


def test_an_instruction_in_which_two_unknown_clocks_may_act_teaches_nothing() -> None:
    bench = Bench()
    for _ in range(9):
        bench.settle(1410)
        bench.set(1005)
        bench.set(900)
        bench.model.ran(0, bench.now_ns, bench.now_ns + SLOW_NS)
        bench.now_ns += SLOW_NS
    assert not bench.model.learned_s
    assert bench.model.latency(900) == Bench().model.latency(900)


def test_the_time_for_which_the_next_clock_has_acted_before_the_end_is_counted() -> None:
    bench = Bench({1410: 5 * MS})
    early_ns = 10 * MS
    for _ in range(20):
        bench.settle(1410)
        bench.set(900)
        began_ns = bench.now_ns
        took_ns = took(20 * MS, SLOW_NS, FAST_NS) - round(early_ns * (SLOW_NS / FAST_NS - 1))
        bench.now_ns = began_ns + took_ns - early_ns - 5 * MS
        bench.set(1410)
        bench.model.ran(0, began_ns, began_ns + took_ns)
        bench.now_ns = began_ns + took_ns
    assert bench.middle_ns(900) == pytest.approx(20 * MS, abs=2 * MS)


def test_a_latency_that_few_changes_have_shown_is_not_known() -> None:
    bench, rnd, own_ns = Bench(steady=False), random.Random(1), round(1.15 * FAST_NS)
    for _ in range(40):
        bench.steadily(0, 1410, round(FAST_NS * rnd.gauss(1, 0.02)))
        bench.steadily(0, 1305, round(own_ns * rnd.gauss(1, 0.02)))
    for _ in range(2):
        bench.change(1410, 1305, round(took(40 * MS, own_ns, FAST_NS) * rnd.gauss(1, 0.02)))
    assert not bench.model.learned_s
    assert not bench.model.knows(1305)


def test_a_latency_that_seems_sure_is_corrected_by_instructions_that_take_as_long_as_at_the_clock_before() -> None:
    bench = Bench({900: MS})
    for _ in range(40):
        bench.change(1410, 900, FAST_NS, after_ns=20 * MS)
    assert bench.model.latency(900).low_ns > 20 * MS


def test_what_was_measured_before_or_learned_while_the_gpu_was_throttled_is_replaced_by_later_measurements() -> None:
    bench = Bench({900: 12_345_678})
    assert bench.middle_ns(900) == 12_345_678
    for acts_ms, changes in ((5, 9), (30, 60)):
        for _ in range(changes):
            bench.change(1410, 900, took(acts_ms * MS, SLOW_NS, FAST_NS))
    assert bench.middle_ns(900) == pytest.approx(30 * MS, abs=2 * MS)


def test_a_usual_duration_that_is_a_little_wrong_is_not_learned_as_a_long_latency() -> None:
    bench = Bench()
    for _ in range(5):
        bench.steadily(1, 1395, round(1.01 * FAST_NS))
        bench.steadily(1, 1410, FAST_NS)
    for _ in range(60):  # 0.5 % shorter than usual: half of what the change makes of it
        bench.change(1410, 1395, round(1.005 * FAST_NS), kind=1)
    assert bench.middle_ns(1395) < 35 * MS


def test_a_clock_that_changes_nothing_under_a_power_limit_is_not_taken_for_one_that_never_acts() -> None:
    bench = Bench()
    for _ in range(12):
        bench.steadily(0, 1100, round(1.08 * FAST_NS))
        bench.change(1410, 1300, FAST_NS)
    assert bench.middle_ns(1300) < 20 * MS


@given(st.lists(st.tuples(st.integers(-(10**12), 10**12), st.integers(0, 10**12)), max_size=20))
def test_whatever_is_observed_a_latency_is_neither_negative_nor_endless(observed: list[tuple[int, int]]) -> None:
    bench = Bench()
    for after_ns, took_ns in observed:
        bench.change(1410, 900, took_ns, after_ns)
    assert all(0 <= 1e9 * latency_s <= SETTLED_NS for latency_s in bench.model.learned_s.values())
    latency = bench.model.latency(900)
    assert 0 <= latency.low_ns <= latency.middle_ns <= latency.high_ns <= SETTLED_NS


def test_the_default_clock_acts_like_the_highest() -> None:
    model = LatencyModel(DriverCalls(CALL_NS), {1410: 9 * MS}, top_mhz=1410)
    assert model.knows(0)
    assert model.lead_ns(0) == model.lead_ns(1410) == CALL_NS + 9 * MS
