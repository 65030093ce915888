"""`InstructionProfiler`: which clocks it measures, and how they share an iteration."""

from pathlib import Path

import pytest
from drawn_jobs import generated_job

from pfo_fs.autotune.instruction_profiler import InstructionProfiler, share_out
from pfo_fs.errors import PlanError
from pfo_fs.planner import make_pipeline
from pfo_fs.planner.profile_csv import read_table
from pfo_fs.settings import PFOSettings
from pfo_fs.simulator import Play

OFFERED = list(range(1410, 209, -15))


def test_clocks_are_measured_until_the_energy_of_each_instruction_has_passed_its_minimum(tmp_path: Path) -> None:
    job = generated_job(55)
    play = Play(job.cluster(1), tmp_path, PFOSettings(profile_steps=3, scheduler="InstructionProfiler"))
    assert any("profiled in" in iteration.status_text for iteration in play.run(400))
    assert play.coordinator.scheduler is not None
    table = read_table("the job", play.coordinator.scheduler.export_profile())
    offered = job.truth.clocks_mhz
    for kind, rows in table.groupby(["stage", "instruction"]):
        curve = rows["frequency"].tolist()
        true_j = {mhz: job.truth.measurement(*kind, mhz).energy_j for mhz in offered}
        best_mhz = min(true_j, key=lambda mhz: true_j[mhz])
        assert max(curve) == max(offered)
        assert min(curve) <= best_mhz or min(curve) == min(offered)


@pytest.mark.parametrize("wrong", [{"tolerance": 0}, {"tolerance": "fine"}, {"max_windows": 0}, {"max_windows": 1.5}])
def test_arguments_that_make_no_sense_are_named(wrong: dict[str, object]) -> None:
    with pytest.raises(PlanError, match=next(iter(wrong))):
        InstructionProfiler.check_args(**wrong)


@pytest.mark.parametrize(
    ("schedule", "stages", "microbatches", "ranks", "least"),
    [("1f1b", 8, 96, None, 10), ("gpipe", 4, 32, None, 6), ("zb-h1", 8, 96, None, 10), ("interleaved", 8, 32, 4, 3)],
)
def test_clocks_share_an_iteration_with_enough_samples_each(
    schedule: str, stages: int, microbatches: int, ranks: int | None, least: int
) -> None:
    pipeline = make_pipeline(schedule, stages, microbatches, num_ranks=ranks)
    for order in pipeline.orders:
        kinds = [(i.stage, i.name) for i in order]
        shared = share_out(kinds, OFFERED[:12], 12)
        used = list(dict.fromkeys(shared))
        assert len(used) >= least
        assert used == OFFERED[: len(used)], "the first clocks come first"
        for kind in set(kinds):
            for mhz in used:
                clean = [
                    n for n in range(1, len(kinds)) if kinds[n] == kind and shared[n] == mhz and shared[n - 1] == mhz
                ]
                assert len(clean) >= 3


def test_few_microbatches_take_one_clock_at_a_time() -> None:
    kinds = [(0, "forward"), (0, "backward")] * 2
    assert share_out(kinds, [1410, 1200], 5) == [1410] * 4
