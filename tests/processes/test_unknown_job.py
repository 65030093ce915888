"""Real training on simulated GPUs for which there is no profile yet."""

import json
from pathlib import Path
from statistics import fmean

import pytest
from jobs import index_of
from running import wait_for
from training_job import StartJob

from pfo_fs.store import Files, JobFolder, SharedDirectory, bodies, layout

EXAMPLE = Path(__file__).parents[2] / "examples" / "train_pipeline.py"


def measured(folder: JobFolder) -> bodies.ModelBody | None:
    """What is known of the job once the time of a plan has been measured beside steps at default clocks."""
    model = folder.read(bodies.ModelBody)
    return model if model is not None and model.more_time is not None and model.default_steps else None


def plans_of(folder: JobFolder) -> list[int]:
    """The numbers of the schedules that hold for ever: not those that only measure."""
    indexes = [folder.read(bodies.IndexBody, number=number) for number in folder.schedule_numbers()]
    return [index.number for index in indexes if index is not None and index.stays]


def mean_clock(folder: JobFolder, number: int) -> float:
    """The mean clock of the instructions of a schedule, relative to the highest of the GPUs."""
    index = index_of(folder, number)
    infos = [body.rank_info for rank in (0, 1) if (body := folder.read_rank(rank)) is not None]
    schedules = [folder.read_schedule(index, info) for info in infos]
    clocks_mhz = [mhz for schedule in schedules if schedule is not None for _, mhz in schedule.frequencies]
    return fmean(clocks_mhz) / max(infos[0].available_frequencies)


PARETO = {"PFO_FS_SCHEDULER": "ParetoScheduler", "PFO_FS_SCHEDULER_ARGS": json.dumps({"slowdown": 1.5})}


@pytest.mark.slow
def test_a_job_is_profiled_planned_for_and_checked_by_itself(start_job: StartJob, tmp_path: Path) -> None:
    root = tmp_path / "pfo"
    shared = SharedDirectory(Files(root, create=True))
    program = [str(EXAMPLE), "--shared-dir", str(root), "--iterations", "100000", "--stop-file", str(tmp_path / "stop")]
    job = start_job(2, {}, program=program, PFO_FS_SIM_TIME_SCALE="8", **PARETO)
    (job_id,) = wait_for(shared.job_ids, "the job")
    folder = shared.job(job_id)
    wait_for(folder.read_job, "job.json")
    model = wait_for(lambda: measured(folder), "a plan that was measured")
    assert job.finish() == 0
    # Found in the training itself. How well (83.64 W), what the plans save, and when a plan stays, is tested in virtual
    # time: on a busy host a part of the instructions counts as waiting, and no two iterations last equally long.
    assert 0.5 * 83.64 < model.blocking_power_w < 300
    assert min(mean_clock(folder, number) for number in plans_of(folder)) < 0.95, "half as long again: all run slower"
    assert "forward" in ((folder.read_file(layout.PROFILE) or b"").decode()), "for `pfo-fs plan`"
