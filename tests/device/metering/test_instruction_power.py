"""The fit of the power of each instruction to a counter that ticks slowly."""

import random
from collections.abc import Sequence

import pytest

from pfo_fs.device.metering.energy_curve import EnergyCurve
from pfo_fs.device.metering.instruction_power import Power, PowerFit

MS = 1_000_000
Instruction = tuple[str, int, int]


def one_f_one_b(rng: random.Random, seconds: float, forward_ms: float, backward_ms: float) -> list[Instruction]:
    """A forward and a backward in turn, with a wait before every fifth, and some jitter."""
    found: list[Instruction] = []
    t_ns, turn = 0, 0
    while t_ns < seconds * 1e9:
        if turn % 5 == 4:
            t_ns += round(rng.uniform(5, 60) * MS)
        name, mean_ms = ("forward", forward_ms) if turn % 2 == 0 else ("backward", backward_ms)
        end_ns = t_ns + round(mean_ms * rng.gauss(1, 0.02) * MS)
        found.append((name, t_ns, end_ns))
        t_ns, turn = end_ns, turn + 1
    return found


def exact(instructions: list[Instruction], watts: dict[str, float]) -> EnergyCurve:
    curve, last_ns, energy_j = EnergyCurve(), 0, 0.0
    for name, t0, t1 in instructions:
        for t_ns, power_w in ((t0, watts[""]), (t1, watts[name])):
            energy_j += power_w * (t_ns - last_ns) / 1e9
            last_ns = t_ns
            curve.add(t_ns + 1, energy_j)
    return curve


def fitted(
    instructions: list[Instruction], ticks: Sequence[tuple[int, float]], clocks: Sequence[tuple[int, int]] = ()
) -> dict[str, Power]:
    fit = PowerFit(1410)
    for t_ns, mhz in clocks:
        fit.clock_acts(t_ns, mhz)
    for _ in fit.add(instructions, ticks):
        pass
    return {f"{power.instruction}{power.frequency or ''}": power for power in fit.solve()}


@pytest.mark.parametrize("seed", range(5))
def test_known_powers_come_out_of_a_counter_that_ticks_every_100_ms(seed: int) -> None:
    """Instructions of 50 and 93 ms: two to four of them in a tick, which interpolation would blur."""
    watts = {"forward": 475.0, "backward": 430.0, "": 83.64}
    instructions = one_f_one_b(random.Random(seed), 60, 50, 93)
    true, shown, t_ns = exact(instructions, watts), EnergyCurve(), 7
    while t_ns < instructions[-1][2]:
        shown.add(t_ns, true.at(t_ns // (100 * MS) * 100 * MS))
        t_ns += shown.pause_ns()
    powers = fitted(instructions, shown.within(0, t_ns))
    for name, true_w in watts.items():
        assert powers[name].power == pytest.approx(true_w, abs=4)
        assert abs(powers[name].power - true_w) < 5 * powers[name].error


def test_a_tick_in_which_the_clock_changes_counts_for_both_clocks() -> None:
    """Every instruction has another clock than the one before, draws 400 W or 300 W, and does not fill a tick."""
    instructions = [("forward", n * 70 * MS, (n + 1) * 70 * MS) for n in range(80)]
    named = [(("high", "low")[number % 2], t0, t1) for number, (_, t0, t1) in enumerate(instructions)]
    true = exact(named, {"high": 400.0, "low": 300.0, "": 0.0})
    ticks = [(t_ns, true.at(t_ns + 1)) for t_ns in range(0, instructions[-1][2], 100 * MS)]
    clocks = [(t0, (1410, 900)[number % 2]) for number, (_, t0, _) in enumerate(instructions)]
    powers = fitted(instructions, ticks, clocks)
    assert powers["forward1410"].power == pytest.approx(400, rel=1e-3)
    assert powers["forward900"].power == pytest.approx(300, rel=1e-3)


def test_the_default_clock_counts_as_the_highest_one_where_an_instruction_ran_at_it_for_a_part() -> None:
    fit = PowerFit(top_mhz=1400)
    fit.clock_acts(0, 1000)
    fit.clock_acts(90 * MS, 0)
    instructions = [("forward", 0, 50 * MS), ("forward", 50 * MS, 100 * MS), ("forward", 100 * MS, 120 * MS)]
    assert list(fit.mean_clocks(instructions)) == [1000, 1080, 0]


def test_powers_that_cannot_be_told_apart_and_those_from_too_few_ticks_are_left_out() -> None:
    """40 ms forward and 60 ms backward in every tick of 100 ms: only their sum is known."""
    rng = random.Random(3)
    instructions: list[Instruction] = []
    for begin in range(0, 30_000 * MS, 100 * MS):
        instructions += [("forward", begin, begin + 40 * MS), ("backward", begin + 40 * MS, begin + 100 * MS)]
    assert fitted(instructions, [(n * 100 * MS, n * 40.0 + rng.gauss(0, 0.5)) for n in range(300)]) == {}
    assert fitted([("forward", 0, 500 * MS)], [(0, 0.0), (100 * MS, 40.0)]) == {}


@pytest.mark.parametrize("ticks", [5, 6])
def test_powers_from_a_few_ticks_that_fit_by_chance_are_not_taken_for_precise(ticks: int) -> None:
    """Ticks of a second, seen 1 ms early or late, in which forwards and backwards run in about the same proportion."""
    watts = {"forward": 240.0, "backward": 230.0, "": 80.0}
    wrong: list[float] = []
    for seed in range(100):
        rng = random.Random(seed)
        instructions = one_f_one_b(rng, ticks + 2, 10, 16)
        true = exact(instructions, watts)
        seen = [(n * 1000 * MS + rng.randint(-MS, MS), true.at(n * 1000 * MS)) for n in range(1, ticks + 1)]
        powers = fitted(instructions, seen)
        wrong += [abs(one.power - watts[one.instruction]) / max(one.error, 1e-9) for one in powers.values()]
    assert len(wrong) > 50
    assert sum(one > 2 for one in wrong) <= 0.1 * len(wrong)


@pytest.mark.slow
def test_errors_hold_for_a_sensor_that_samples_25_of_every_100_ms() -> None:
    """As on A100 and H100 (arXiv:2312.02741), with instructions of 8 ms to 7 s, in windows of 20 to 100 s."""
    watts, off = {"forward": 475.0, "backward": 430.0, "": 83.64}, []
    for forward_ms, backward_ms, seconds in ((8, 15, 20), (50, 93, 30), (400, 900, 60), (3000, 7000, 100)):
        for seed in range(10):
            instructions = one_f_one_b(random.Random(seed), seconds, forward_ms, backward_ms)
            true, shown, shown_j = exact(instructions, watts), EnergyCurve(), 0.0
            for tick_ns in range(0, instructions[-1][2], 100 * MS):
                shown.add(tick_ns, shown_j)
                shown_j += 4 * (true.at(tick_ns + 25 * MS) - true.at(tick_ns))
            powers = fitted(instructions, shown.within(0, instructions[-1][2]))
            off += [abs(one.power - watts[one.instruction]) / one.error for one in powers.values() if one.instruction]
    assert len(off) == 80
    assert sum(one <= 2 for one in off) >= 0.9 * len(off)
