"""Real training on simulated GPUs for which there is no profile yet."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import fmean

import pytest
from jobs import index_of
from running import HANGS_AFTER_S, Processes, environment, wait_for
from training_job import StartJob

from pfo_fs.store import Files, JobFolder, SharedDirectory, bodies, layout

EXAMPLE = Path(__file__).parents[2] / "examples" / "train_pipeline.py"


def converged(folder: JobFolder) -> bool:
    current = folder.read(bodies.CurrentBody)
    return current is not None and current.converged


def plans_of(folder: JobFolder) -> list[int]:
    """The numbers of the schedules that hold for ever: not those that only measure."""
    indexes = [folder.read(bodies.IndexBody, number=number) for number in folder.schedule_numbers()]
    return [index.number for index in indexes if index is not None and index.stays]


def mean_clock_mhz(folder: JobFolder, number: int) -> float:
    index = index_of(folder, number)
    ranks = [folder.read_rank(rank) for rank in (0, 1)]
    schedules = [folder.read_schedule(index, body.rank_info) for body in ranks if body is not None]
    return fmean(mhz for schedule in schedules if schedule is not None for _, mhz in schedule.frequencies)


PARETO = {"PFO_FS_SCHEDULER": "ParetoScheduler", "PFO_FS_SCHEDULER_ARGS": json.dumps({"slowdown": 1.5})}


@pytest.mark.slow
@pytest.mark.parametrize("coordination", ["daemon", "local"])
def test_a_job_is_profiled_planned_for_and_checked_by_itself(
    coordination: str, start_job: StartJob, processes: Processes, tmp_path: Path
) -> None:
    root = tmp_path / "pfo"
    shared = SharedDirectory(Files(root, create=True))
    if coordination == "daemon":
        processes.leader(root, env=environment(**PARETO))
    program = [str(EXAMPLE), "--shared-dir", str(root), "--iterations", "100000", "--stop-file", str(tmp_path / "stop")]
    job = start_job(2, {}, torchrun=True, program=program, PFO_FS_SIM_TIME_SCALE="8", **PARETO)
    (job_id,) = wait_for(shared.job_ids, "the job")
    folder = shared.job(job_id)
    wait_for(folder.read_job, "job.json")
    wait_for(lambda: converged(folder), "a plan that was measured and stays", within_s=3 * HANGS_AFTER_S)
    assert job.finish() == 0
    model = folder.read(bodies.ModelBody)
    assert model is not None
    # Found in the training itself. How well (83.64 W), and what the plans save, is tested in virtual time: on a busy
    # host a part of the instructions counts as waiting, and iterations last longer and take more energy.
    assert 0.5 * 83.64 < model.blocking_power_w < 300
    highest, *planned = [mean_clock_mhz(folder, number) for number in (1, *plans_of(folder))]
    assert min(planned) < 0.95 * highest, "half as long again lets all instructions run slower"
    assert "forward" in ((folder.read_file(layout.PROFILE) or b"").decode()), "for `pfo-fs plan`"
