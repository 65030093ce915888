"""What a job's windows lead to: points, curves, and judgements of plans."""

import math
import random
from collections.abc import Sequence
from functools import cache
from itertools import pairwise

import pytest
from scheduler_jobs import make_job, one_f_one_b, order_of

from pfo_fs.autotune.beliefs import Beliefs
from pfo_fs.autotune.curves import CAUTIOUS
from pfo_fs.autotune.decision import probe_plan
from pfo_fs.autotune.goals import PlanGoal
from pfo_fs.autotune.job_layout import ClockPlan, JobLayout
from pfo_fs.autotune.judgements import Figure, Trial
from pfo_fs.autotune.model import JobModel
from pfo_fs.autotune.trials import trial_of
from pfo_fs.models import FrequencySchedule, InstructionPower, ProfilingResult, Switching, Target
from pfo_fs.turns import ALL, ROUND, follows, half_of

STAGES, MICROBATCHES, ITERATIONS, TOP_MHZ = 2, 4, 5, 1410
CLOCKS = list(range(810, TOP_MHZ + 1, 30))
NO_SLOWDOWN = PlanGoal(Target(slowdown=1.0), {})
SECONDS = {"forward": 0.1, "backward": 0.2}


def beliefs_of(dp: int = 1, tp: int = 1) -> Beliefs:
    job, infos = make_job(STAGES, dp, tp, clocks=CLOCKS)
    orders = {info.rank: order_of(one_f_one_b(info.pp_rank, STAGES, MICROBATCHES)) for info in infos}
    return Beliefs(JobLayout(job, infos, lambda: orders))


def power_w(mhz: int) -> float:
    return 100 + 250 * (mhz / TOP_MHZ) ** 3


def results_of(
    beliefs: Beliefs,
    schedules: list[FrequencySchedule],
    default_mhz: int = TOP_MHZ,
    noise: float = 0.002,
    turns: Sequence[int] = (),
    count: int = ITERATIONS,
    factors: Sequence[float] = (),
) -> list[ProfilingResult]:
    """What ranks measure whose clock processes follow the device; the second stage has half of the first one's work.

    In turns, a rank that does not follow runs at default clocks, and iteration i takes `factors[i]` times as long.
    """
    layout, found = beliefs.layout, []
    in_force = {schedule.rank: schedule for schedule in schedules}
    rng = random.Random(len(beliefs.windows))
    first_step = ITERATIONS * len(beliefs.windows)
    for info in layout.rank_infos:
        ran = [(name, mhz) for name, _, mhz in layout.run_by(info.rank, in_force.get(info.rank))]
        times: dict[str, list[list[float]]] = {name: [] for name in SECONDS}
        clocks: dict[str, list[list[int]]] = {name: [] for name in SECONDS}
        energies_j, spans_s = [], []
        for number in range(count):
            follows_it = follows(turns, first_step + number, half_of(info.pp_rank, info.dp_rank))
            factor = factors[number] if factors else 1.0
            energy_j = busy_s = 0.0
            for name in SECONDS:
                own = [mhz if follows_it else 0 for each, mhz in ran if each == name]
                whole_s = factor * SECONDS[name] / (1 + info.pp_rank)
                took_s = [whole_s * (0.2 + 0.8 * TOP_MHZ / (mhz or default_mhz)) * rng.gauss(1, noise) for mhz in own]
                times[name].append(took_s)
                clocks[name].append(own)
                energy_j += sum(s * power_w(mhz or default_mhz) for s, mhz in zip(took_s, own, strict=True))
                busy_s += sum(took_s)
            spans_s.append(factor * 0.3 * (MICROBATCHES + 0.5))
            energies_j.append(energy_j + 70.0 * (spans_s[-1] + 0.1 - busy_s))
        found.append(
            ProfilingResult(
                rank=info.rank,
                iter_time=[span_s + 0.1 for span_s in spans_s],
                iter_span=spans_s,
                iter_step=list(range(first_step, first_step + count)),
                iter_energy=energies_j,
                time_breakdown=times,
                clock_breakdown=clocks,
                switching=Switching(
                    mode="device", call_s=0.001, latencies_s=dict.fromkeys(info.available_frequencies, 0.004)
                ),
                powers=[
                    InstructionPower(
                        instruction=name, frequency=mhz, power=power_w(mhz or default_mhz), error=1.0, seconds=1.0
                    )
                    for name, mhz in sorted({*ran, *((name, 0) for name, _ in ran if turns)})
                ],
            )
        )
    return found


def model_of(beliefs: Beliefs) -> JobModel:
    return JobModel(beliefs, NO_SLOWDOWN, 70.0)


def at_max_clocks(dp: int = 1, tp: int = 1) -> Beliefs:
    beliefs = beliefs_of(dp, tp)
    beliefs.take(results_of(beliefs, []), [])
    return beliefs


def probed(dp: int = 1) -> Beliefs:
    """After a window at max clocks and one of low clocks."""
    beliefs = at_max_clocks(dp)
    model = model_of(beliefs)
    schedules = model.schedules(probe_plan(model, beliefs))
    beliefs.take(results_of(beliefs, schedules), schedules)
    return beliefs


def test_a_first_probe_lowers_every_kind_of_instruction_and_is_not_late_however_clocks_act() -> None:
    beliefs = at_max_clocks()
    model = model_of(beliefs)
    plan = probe_plan(model, beliefs)
    lowered = {
        (instruction.stage, instruction.name)
        for instruction, mhz in zip(model.problem.pipeline.instructions, plan.of(0), strict=True)
        if mhz < TOP_MHZ
    }
    assert lowered == set(beliefs.layout.kinds)
    second = model.problem.pipeline.first_nodes[1]
    assert min(plan.of(0)[second:]) < min(plan.of(0)[:second]), (
        "the second stage waits for the first one, so that it has slack"
    )


def test_a_plan_with_a_clock_that_a_model_lacks_is_judged_at_the_nearest_one() -> None:
    beliefs = probed()
    model = model_of(beliefs)
    nodes = len(model.problem.pipeline.instructions)
    model.stretches = [0] * 7 + [1] * 9
    assert not model.one_stretch, "the first rank has two"
    plan, near = (ClockPlan(((mhz,) * nodes,)) for mhz in (1111, 1110))
    assert model.judge(plan) == model.judge(near)
    schedules = model.schedules(plan)
    window = beliefs.take(results_of(beliefs, schedules), schedules)
    assert trial_of(model, beliefs, plan, window, 1).later == trial_of(model, beliefs, near, window, 1).later
    assert model.mixed(plan, near, 1).clocks_mhz == near.clocks_mhz


def test_an_iteration_in_which_a_coarse_timer_measures_0_s_is_left_out() -> None:
    beliefs = beliefs_of()
    results = results_of(beliefs, [])
    results[0].time_breakdown["forward"][2][1] = 0.0
    window = beliefs.take(results, [])
    assert window.steps == (0, 1, 3, 4)
    assert model_of(beliefs).iterations


@pytest.mark.parametrize(("factor", "kept"), [(1.0, 2), (1.01, 2), (0.8, 1), (1.2, 1)])
def test_after_an_alarm_windows_of_other_durations_tell_nothing_any_more(factor: float, kept: int) -> None:
    beliefs = at_max_clocks()
    beliefs.take(results_of(beliefs, [], factors=[factor] * ITERATIONS), [], after_alarm=True)
    assert len(beliefs.windows) == kept
    beliefs.take(results_of(beliefs, [], factors=[1.5] * ITERATIONS), [])
    assert len(beliefs.windows) == kept + 1, "without an alarm, they show what loads to expect"


def test_the_first_step_after_a_change_of_turn_does_not_tell_how_late_a_plan_is() -> None:
    beliefs = probed()
    model = model_of(beliefs)
    plan = probe_plan(model, beliefs)
    schedules = model.schedules(plan)
    turns = [turn for turn in ROUND for _ in range(2)]
    steps = [turns[step % len(turns)] for step in range(2 * ITERATIONS - 1, 2 * ITERATIONS + 16)]
    factors = [1.05 if before == turn == ALL else 1.0 for before, turn in pairwise(steps)]
    window = beliefs.take(results_of(beliefs, schedules, turns=turns, count=16, factors=factors), schedules, turns)
    assert trial_of(model, beliefs, plan, window, 2).slower.value == pytest.approx(0.05, rel=0.1)


def test_times_and_powers_at_the_clocks_of_a_window_are_learned() -> None:
    beliefs = probed()
    for (stage, name), points in beliefs.samples.points.items():
        assert len(points) > 1
        for mhz, point in points.items():
            expected_s = SECONDS[name] / (1 + stage) * (0.2 + 0.8 * TOP_MHZ / mhz)
            assert point.time_s == pytest.approx(expected_s, rel=5 * point.time_error + 0.002)
            assert point.power_w == pytest.approx(power_w(mhz), rel=0.01)


def test_ranks_that_compute_together_tell_no_more_than_one_of_them_and_pipelines_do() -> None:
    def error(dp: int, tp: int) -> float:
        return at_max_clocks(dp, tp).samples.points[0, "forward"][TOP_MHZ].time_error

    alone = error(1, 1)
    assert error(1, 4) > 0.4 * alone
    assert error(4, 1) == pytest.approx(alone / 2, rel=0.4)


def add_trials(plan: ClockPlan, beliefs: Beliefs, saved: float, later: float) -> None:
    for _ in range(10):
        beliefs.add_trial(Trial(plan, Figure(saved, 0.003), Figure(later, 0.0002)))


def test_a_plan_saves_energy_and_is_not_late_and_measured_often_it_is_believed_to_do_what_was_measured() -> None:
    beliefs = probed()
    model = model_of(beliefs)
    plan, other = model.plan(1.0005), model.plan(1.02)
    expected, expected_of_other = model.judge(plan), model.judge(other)
    assert expected.saved > 0.05
    assert expected.late <= 0.001
    add_trials(plan, beliefs, expected.saved - 0.03, 0.002)
    again = model_of(beliefs)
    found = again.judge(plan)
    assert found.saved == pytest.approx(expected.saved - 0.03, abs=0.005)
    assert found.late == pytest.approx(expected.late + 0.002, abs=0.0003)
    assert found.saved_error < expected.saved_error
    assert expected_of_other.saved - 0.03 < again.judge(other).saved < expected_of_other.saved - 0.015, "others too"
    assert again.judge(again.max_clocks).saved == 0.0
    assert again.judge(again.max_clocks).late == pytest.approx(0.0, abs=1e-9)


def test_a_plan_is_never_told_to_be_faster_than_max_clocks() -> None:
    """Its iterations had less work than those at max clocks, by chance."""
    beliefs = probed()
    plan = model_of(beliefs).plan(1.0005)
    add_trials(plan, beliefs, 0.1, -0.02)
    assert model_of(beliefs).judge(plan).slower == 0.0


def test_default_clocks_below_the_highest_ones_are_noticed() -> None:
    def differ(default_mhz: int) -> bool:
        beliefs = beliefs_of()
        beliefs.take(results_of(beliefs, [], default_mhz), [])
        model = model_of(beliefs)
        schedules = model.schedules(probe_plan(model, beliefs))
        beliefs.take(results_of(beliefs, schedules, default_mhz, turns=ROUND, count=8), schedules, ROUND)
        return beliefs.default_clocks_differ()

    assert not differ(TOP_MHZ)
    assert differ(1260)


def test_schedules_of_a_plan_name_the_instructions_of_each_rank() -> None:
    longer = FrequencySchedule(rank=0, frequencies=[("forward", 900)] * (2 * MICROBATCHES + 1))
    assert beliefs_of().layout.run_by(0, longer) == []
    beliefs = probed(dp=2)
    model = model_of(beliefs)
    plan = model.plan(1.0005)
    schedules = model.schedules(plan)
    assert model.plan_of(schedules) == plan
    assert [schedule.rank for schedule in schedules] == [info.rank for info in beliefs.layout.rank_infos]
    for schedule in schedules:
        names = [name for name, _ in schedule.frequencies]
        assert names == one_f_one_b(beliefs.layout.place[schedule.rank].pp_rank, STAGES, MICROBATCHES)
        assert {mhz for _, mhz in schedule.frequencies} <= set(CLOCKS)


def test_a_model_is_made_where_the_latest_window_holds_only_one_of_two_unlike_pipelines() -> None:
    """A straggler is not measured; when it is healthy again, the model is made before the next window."""
    beliefs = beliefs_of(dp=2)
    slow = {info.rank for info in beliefs.layout.rank_infos if info.dp_rank == 0}
    results = results_of(beliefs, [])
    for result in results:
        if result.rank in slow:
            for rows in result.time_breakdown.values():
                rows[:] = [[1.2 * seconds for seconds in row] for row in rows]
    beliefs.take(results, [])
    beliefs.slow_pipelines = frozenset({0})
    beliefs.take(results_of(beliefs, []), [])
    assert beliefs.windows[-1].pipelines == (1,)
    model = model_of(beliefs)
    assert model.judge(model.max_clocks).saved == 0.0


def test_the_window_of_the_highest_clocks_stays_however_many_follow() -> None:
    beliefs = probed()
    (highest, lower) = beliefs.windows
    schedules = model_of(beliefs).schedules(probe_plan(model_of(beliefs), beliefs))
    for _ in range(12):
        beliefs.take(results_of(beliefs, schedules), schedules)
    assert any(window is highest for window in beliefs.windows)
    assert not any(window is lower for window in beliefs.windows)


def test_plans_are_judged_by_other_iterations_than_they_are_made_for() -> None:
    """A plan that fits each of few iterations exactly is late in others, and says so."""
    beliefs = beliefs_of(dp=2)
    rng = random.Random(1)
    results = results_of(beliefs, [])
    for result in results:
        for iterations in result.time_breakdown.values():
            iterations[:] = [[math.exp(rng.gauss(0, 0.2)) * seconds for seconds in each] for each in iterations]
    beliefs.take(results, [])
    model = model_of(beliefs)
    found = model.judge(model.plan(1.0, CAUTIOUS))
    assert found.late > 0.001
    assert found.late_error > 0.001


def test_at_full_speed_durations_scatter_as_they_were_measured() -> None:
    beliefs = probed()
    schedules = model_of(beliefs).schedules(probe_plan(model_of(beliefs), beliefs))
    window = beliefs.take(results_of(beliefs, schedules, noise=0.03), schedules)
    full_s = beliefs.at_max_clocks_s()[-1]
    scatter = (full_s.std(axis=0) / full_s.mean(axis=0)).mean()
    assert scatter == pytest.approx((window.times_s.std(axis=0) / window.times_s.mean(axis=0)).mean(), rel=0.05)


@cache
def measured_in_turns(
    factors: tuple[float, ...], block: int = 1, shorter: float = 1.0, mixed: float = 0.0, unlearned: bool = False
) -> tuple[JobModel, ClockPlan, Trial]:
    """A plan that lowers the second stage, and what a window of two rounds of turns tells of it.

    Every second instruction at lower clocks has begun at the clock before: its mean clock is told as higher by 60 MHz,
    and it takes `shorter` times as long as at that clock. The energy of a turn's last step has a share `mixed` of the
    next step's. `unlearned`: no clock process knows when a clock acts, and the first ones acted too late.
    """
    beliefs = probed()
    model = model_of(beliefs)
    second = model.problem.pipeline.first_nodes[1]
    lower = [1110 if node >= second else mhz for node, mhz in enumerate(model.max_clocks.of(0))]
    plan = ClockPlan((tuple(lower),))
    schedules = model.schedules(plan)
    turns, count = tuple(turn for turn in ROUND for _ in range(block)), 8 * block
    results = results_of(beliefs, schedules, turns=turns, count=count, factors=[*factors, *factors][:count])
    for result in results if shorter != 1.0 else ():
        for name, rows in result.time_breakdown.items():
            for row, clocks in zip(rows, result.clock_breakdown[name], strict=True):
                for place in [place for place, mhz in enumerate(clocks) if mhz == 1110][::2]:
                    row[place] *= shorter * (0.2 + 0.8 * TOP_MHZ / 1170) / (0.2 + 0.8 * TOP_MHZ / 1110)
                    clocks[place] = 1170
    for result in results if unlearned else ():
        result.switching = result.switching.model_copy(update={"latencies_s": {}})
        for row, clocks in zip(result.time_breakdown["forward"], result.clock_breakdown["forward"], strict=True):
            row[0] /= 0.2 + 0.8 * TOP_MHZ / (clocks[0] or TOP_MHZ)
    for result in results:
        energies_j = result.iter_energy
        for number in range(count - 1):
            if result.iter_step[number + 1] % block == 0:
                energies_j[number] += mixed * (energies_j[number + 1] - energies_j[number])
    window = beliefs.take(results, schedules, turns)
    return model_of(beliefs), plan, trial_of(model_of(beliefs), beliefs, plan, window, block)


STEP_FACTORS = (1.0, 1.3, 0.8, 1.1, 0.9, 1.25, 0.75, 1.05)


def test_the_energy_that_a_plan_saves_is_told_by_each_ranks_own_steps_with_and_without_it() -> None:
    busy_s = {mhz: MICROBATCHES * 0.15 * (0.2 + 0.8 * TOP_MHZ / mhz) for mhz in (1110, TOP_MHZ)}
    step_s = 0.3 * (MICROBATCHES + 0.5) + 0.1
    of_second = {mhz: busy_s[mhz] * power_w(mhz) + 70 * (step_s - busy_s[mhz]) for mhz in busy_s}
    first_j = 2 * busy_s[TOP_MHZ] * power_w(TOP_MHZ) + 70 * (step_s - 2 * busy_s[TOP_MHZ])
    saved = (of_second[TOP_MHZ] - of_second[1110]) / (first_j + of_second[TOP_MHZ])
    for factors in ((), STEP_FACTORS):
        _, _, trial = measured_in_turns(factors, block=2)
        assert trial.saved.value == pytest.approx(saved, abs=3 * trial.saved.error + 0.003)
        assert trial.saved.error < 0.01


def test_instructions_that_began_at_the_clock_before_are_not_taken_for_less_work() -> None:
    _, _, exact = measured_in_turns((), block=2)
    _, _, late_clocks = measured_in_turns((), block=2, shorter=0.94)
    assert late_clocks.saved.value == pytest.approx(exact.saved.value, abs=2 * late_clocks.saved.error)


def test_energies_that_slow_readings_mix_at_the_end_of_turns_are_left_out() -> None:
    _, _, exact = measured_in_turns((), block=4)
    _, _, mixed = measured_in_turns((), block=4, mixed=0.4)
    assert mixed.saved.value == pytest.approx(exact.saved.value, abs=1e-3)


def test_a_clock_of_which_it_is_unknown_whether_it_acted_in_time_is_no_error_of_the_model() -> None:
    """Iterations take the same time with and without the plan; the model expects its first instruction to be longer."""
    _, _, learned = measured_in_turns(())
    _, _, unlearned = measured_in_turns((), unlearned=True)
    assert learned.later.value < 1.3 * unlearned.later.value < 0


def test_factors_of_whole_steps_are_no_part_of_what_a_plan_is_late() -> None:
    """Steps that differ by 20 % tell a plan's lateness as exactly as those that do not."""
    model, plan, trial = measured_in_turns(STEP_FACTORS)
    calm, same, calm_trial = measured_in_turns(())
    assert model.judge(plan).late == pytest.approx(calm.judge(same).late, abs=0.004)
    assert trial.later.error < 3 * calm_trial.later.error + 0.003
    assert trial.default_steps == 4, "two of all ranks, and four of half of them"


@pytest.mark.parametrize(("block", "count"), [(1, 8), (2, 1)], ids=["short blocks", "one step"])
def test_blocks_that_are_too_short_for_energy_counters_tell_no_energy(block: int, count: int) -> None:
    beliefs = probed()
    model = model_of(beliefs)
    plan = model.plan(1.0005)
    schedules = model.schedules(plan)
    results = results_of(beliefs, schedules, turns=ROUND, count=count, factors=[0.05] * count)
    window = beliefs.take(results, schedules, ROUND)
    assert math.isinf(trial_of(model_of(beliefs), beliefs, plan, window, block).saved.error)


def test_powers_of_warm_gpus_are_told_as_those_of_the_first_windows() -> None:
    beliefs = probed()
    before = {mhz: point.power_w for mhz, point in beliefs.samples.curve((0, "forward")).items()}
    for _ in range(3):
        results = results_of(beliefs, [])
        for result in results:
            result.powers[:] = [one.model_copy(update={"power": 1.05 * one.power}) for one in result.powers]
        beliefs.take(results, [])
    after = {mhz: point.power_w for mhz, point in beliefs.samples.curve((0, "forward")).items()}
    assert after == {mhz: pytest.approx(watts, rel=0.005) for mhz, watts in before.items()}
