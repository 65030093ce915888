"""Whether powers have risen since they were first measured."""

from __future__ import annotations

import pytest
from scheduler_jobs import make_job, one_f_one_b, order_of, schedule_of

from pfo_fs.autotune.beliefs import Beliefs
from pfo_fs.autotune.job_layout import JobLayout
from pfo_fs.models import FrequencySchedule, InstructionPower, ProfilingResult

STAGES, MICROBATCHES, CLOCKS = 2, 3, (1410, 1200)


def beliefs() -> Beliefs:
    job, infos = make_job(STAGES, 1)
    orders = {info.rank: order_of(one_f_one_b(info.pp_rank, STAGES, MICROBATCHES)) for info in infos}
    return Beliefs(JobLayout(job, infos, lambda: orders))


def window(powers: dict[tuple[str, int], float]) -> list[ProfilingResult]:
    """What ranks measure, with powers in W by instruction and clock."""
    return [
        ProfilingResult(
            rank=rank,
            iter_time=[1.0] * 2,
            iter_energy=[300.0] * 2,
            time_breakdown={name: [[0.1] * MICROBATCHES] * 2 for name in ("forward", "backward")},
            powers=[
                InstructionPower(instruction=name, frequency=mhz, power=watts, error=1.0, seconds=5)
                for (name, mhz), watts in powers.items()
            ],
        )
        for rank in range(STAGES)
    ]


def schedules(mhz: int) -> list[FrequencySchedule]:
    return [schedule_of(rank, one_f_one_b(rank, STAGES, MICROBATCHES), lambda _: mhz) for rank in range(STAGES)]


def profiled() -> Beliefs:
    found = beliefs()
    for mhz in CLOCKS:
        found.take(window({("forward", mhz): 0.3 * mhz, ("backward", mhz): 0.28 * mhz}), schedules(mhz))
    return found


def test_powers_that_rise_together_are_a_drift() -> None:
    found = profiled()
    for _ in range(3):
        found.take(window({("forward", 1200): 1.03 * 360, ("backward", 1200): 1.03 * 336}), schedules(1200))
    assert found.power_drift_factor == pytest.approx(1.03, abs=0.005)


def test_one_power_that_is_far_off_is_not() -> None:
    found = profiled()
    found.take(window({("backward", 1200): 1.2 * 336}), schedules(1200))
    assert found.power_drift_factor == pytest.approx(1.0, abs=0.005)


def test_powers_that_stay_are_none() -> None:
    found = profiled()
    found.take(window({("forward", 1200): 360.0, ("backward", 1200): 336.0}), schedules(1200))
    assert found.power_drift_factor == pytest.approx(1.0, abs=0.001)
