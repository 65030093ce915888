"""The fit of the power of each instruction to a counter that ticks slowly."""

from __future__ import annotations

import random
from bisect import bisect_right

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


def energies_of(instructions: list[Instruction], watts: dict[str, float]) -> list[tuple[int, float]]:
    """The energy so far (ns, J) at the begin and the end of each instruction."""
    found = [(0, 0.0)]
    for name, t0, t1 in instructions:
        for t_ns, power_w in ((t0, watts[""]), (t1, watts[name])):
            last_ns, energy_j = found[-1]
            found.append((t_ns, energy_j + power_w * (t_ns - last_ns) / 1e9))
    return found


def read(
    instructions: list[Instruction], watts: dict[str, float], tick_ms: int = 100, every_ms: int = 20
) -> EnergyCurve:
    """What a counter shows that ticks every `tick_ms` and is read when the curve says."""
    ends, energies = zip(*energies_of(instructions, watts), strict=True)

    def true_j(t_ns: int) -> float:
        at = min(bisect_right(ends, t_ns), len(ends) - 1)
        span = ends[at] - ends[at - 1]
        return (
            energies[at - 1] + (energies[at] - energies[at - 1]) * (t_ns - ends[at - 1]) / span
            if span
            else energies[at]
        )

    curve = EnergyCurve()
    t_ns = 7
    while t_ns < ends[-1]:
        curve.add(t_ns, true_j(t_ns // (tick_ms * MS) * tick_ms * MS))
        t_ns += curve.pause_ns()
    return curve


def fitted(instructions: list[Instruction], curve: EnergyCurve, clocks: list[tuple[int, int]] = []) -> dict[str, Power]:  # noqa: B006
    fit = PowerFit(1410)
    for t_ns, mhz in clocks:
        fit.clock_acts(t_ns, mhz)
    for _ in fit.add(instructions, curve.within(0, instructions[-1][2])):
        pass
    return {f"{power.instruction}{power.frequency or ''}": power for power in fit.solve()}


@pytest.mark.parametrize("seed", range(5))
def test_known_powers_come_out_of_a_counter_that_ticks_every_100_ms(seed: int) -> None:
    """Instructions of 50 and 93 ms: two to four of them in a tick, which interpolation would blur."""
    watts = {"forward": 475.0, "backward": 430.0, "": 83.64}
    instructions = one_f_one_b(random.Random(seed), 60, 50, 93)
    powers = fitted(instructions, read(instructions, watts))
    for name, true_w in watts.items():
        assert powers[name].power == pytest.approx(true_w, abs=4)
        assert abs(powers[name].power - true_w) < 5 * powers[name].error


def test_more_ticks_make_a_smaller_error() -> None:
    watts = {"forward": 475.0, "backward": 430.0, "": 83.64}
    long = one_f_one_b(random.Random(1), 60, 50, 93)
    short = [instruction for instruction in long if instruction[2] < 5e9]
    assert fitted(long, read(long, watts))["forward"].error < fitted(short, read(short, watts))["forward"].error / 2


def two_clocks(instructions: list[Instruction], changes_ms: list[int]) -> EnergyCurve:
    """Ticks of 100 ms of a GPU that draws 400 W, and 300 W after every second change."""
    curve, energy_j = EnergyCurve(), 0.0
    for t_ms in range(instructions[-1][2] // MS):
        if t_ms % 100 == 0:
            curve.add(t_ms * MS, energy_j)
        energy_j += 0.4 if sum(change <= t_ms for change in changes_ms) % 2 == 0 else 0.3
    return curve


def test_a_tick_in_which_the_clock_changes_counts_for_both_clocks() -> None:
    """Every instruction has another clock than the one before, and none fills a tick."""
    instructions = [("forward", n * 70 * MS, (n + 1) * 70 * MS) for n in range(80)]
    changes_ms = [begin // MS for _, begin, _ in instructions][1:]
    clocks = [(change * MS, (900, 1410)[number % 2]) for number, change in enumerate(changes_ms)]
    powers = fitted(instructions, two_clocks(instructions, changes_ms), [(0, 1410), *clocks])
    assert powers["forward1410"].power == pytest.approx(400, rel=1e-3)
    assert powers["forward900"].power == pytest.approx(300, rel=1e-3)


def test_the_default_clock_counts_as_the_highest_one_where_an_instruction_ran_at_it_for_a_part() -> None:
    fit = PowerFit(top_mhz=1400)
    fit.clock_acts(0, 1000)
    fit.clock_acts(90 * MS, 0)
    instructions = [("forward", 0, 50 * MS), ("forward", 50 * MS, 100 * MS), ("forward", 100 * MS, 120 * MS)]
    assert list(fit.mean_clocks(instructions)) == [1000, 1080, 0]


def test_powers_that_cannot_be_told_apart_are_left_out() -> None:
    """40 ms forward and 60 ms backward in every tick of 100 ms: only their sum is known."""
    rng = random.Random(3)
    instructions: list[Instruction] = []
    for n in range(300):
        begin = n * 100 * MS
        instructions += [("forward", begin, begin + 40 * MS), ("backward", begin + 40 * MS, begin + 100 * MS)]
    fit = PowerFit(1410)
    for _ in fit.add(instructions, [(n * 100 * MS, n * 40.0 + rng.gauss(0, 0.5)) for n in range(300)]):
        pass
    assert fit.solve() == []


def test_too_few_ticks_give_no_answer_rather_than_a_wild_one() -> None:
    fit = PowerFit(1410)
    for _ in fit.add([("forward", 0, 500 * MS)], [(0, 0.0), (100 * MS, 40.0)]):
        pass
    assert fit.solve() == []


@pytest.mark.parametrize("ticks", [5, 6])
def test_powers_from_a_few_ticks_that_fit_by_chance_are_not_taken_for_precise(ticks: int) -> None:
    """Ticks of a second, seen 1 ms early or late, in which forwards and backwards run in about the same proportion."""
    watts = {"forward": 240.0, "backward": 230.0, "": 80.0}
    wrong: list[float] = []
    for seed in range(100):
        rng = random.Random(seed)
        instructions = one_f_one_b(rng, ticks + 2, 10, 16)
        exact = EnergyCurve()
        for t_ns, energy_j in energies_of(instructions, watts):
            exact.add(t_ns, energy_j)
        fit = PowerFit(1410)
        tick_ns = [n * 1000 * MS for n in range(1, ticks + 1)]
        for _ in fit.add(instructions, [(t_ns + rng.randint(-MS, MS), exact.at(t_ns)) for t_ns in tick_ns]):
            pass
        wrong += [abs(power.power - watts[power.instruction]) / max(power.error, 1e-9) for power in fit.solve()]
    assert len(wrong) > 50
    assert sum(one > 2 for one in wrong) <= 0.1 * len(wrong)
