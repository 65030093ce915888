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


@pytest.mark.parametrize(
    ("forward", "backward", "windows", "factor"),
    [(1.03, 1.03, 3, 1.03), (None, 1.2, 1, 1.0), (1.0, 1.0, 1, 1.0)],
    ids=["all rise", "one is far off", "all stay"],
)
def test_only_powers_that_rise_together_are_a_drift(
    forward: float | None, backward: float, windows: int, factor: float
) -> None:
    found, powers = profiled(), {("backward", 1200): backward * 336}
    if forward is not None:
        powers["forward", 1200] = forward * 360
    for _ in range(windows):
        found.take(window(powers), schedules(1200))
    assert found.power_drift_factor == pytest.approx(factor, abs=0.005)
