"""What must hold at the end of a fast episode, from the directory and the logs of ranks and GPUs."""

from __future__ import annotations

from pathlib import Path

from benchmarks.chaos.policies import Learner
from benchmarks.chaos.records import broken_schedules, damaged_records, ranks_with_result
from benchmarks.chaos.world import World
from pfo_fs.store import Files, JobFolder, SharedDirectory, bodies


def violations(world: World) -> list[str]:
    """Returns what does not hold; empty if all is well."""
    files = Files(world.root) if Path(world.root).is_dir() else None
    found = [*Learner.observed_twice, *damaged_records(Path(world.root))]
    lowered = [rank for rank in world.ranks if rank.gpu_log[-1] and not rank.killed_as_a_whole]
    found += [f"the GPU of rank {rank.number} is left at {rank.gpu_log[-1]} MHz" for rank in lowered]
    folder = _folder(files, world.job_id)
    if not world.job_id:
        return found
    if folder is None:
        return [*found, f"the folder of job {world.job_id} is gone"]
    return [
        *found,
        *broken_schedules(folder, [rank.log for rank in world.ranks], world.coordination),
        *_agreement(world, folder),
        *_results(world, folder),
        *_end(world, folder),
        *_calm(world),
    ]


def _folder(files: Files | None, job_id: str) -> JobFolder | None:
    if files is None or not job_id:
        return None
    shared = SharedDirectory(files)
    for archived in (False, True):
        folder = shared.job(job_id, archived=archived)
        if files.names_if_there(folder.path) is not None:
            folder.attempt = "attempt"
            return folder
    return None


def _agreement(world: World, folder: JobFolder) -> list[str]:
    """At each step all ranks follow the same schedule, or default clocks.

    Where a daemon schedules, a rank may be late while a helper or a daemon is dead, stopped, or without files; and all
    ranks are, by different times, if a daemon died between commit and announcement and the next one announces.
    """
    much_late = 3 * world.lead_s / world.step_s
    for step in range(world.step_number):
        entries = {rank.number: rank.log[step] for rank in world.ranks if step in rank.log}
        active = {number for number, suspended in entries.values() if not suspended and number >= 0}
        if len(active) < 2 or (world.coordination == "daemon" and step in world.in_trouble):
            continue
        index = folder.read(bodies.IndexBody, number=max(active))
        if world.coordination == "local" or index is None or index.start_step > step - much_late:
            return [f"at step {step} ranks followed different schedules: {entries}"]
    return []


def _results(world: World, folder: JobFolder) -> list[str]:
    """Each result that a helper got is in the directory if that helper served the job and was not killed."""
    killed = {id(helper) for helper in world.killed_helpers}
    return [
        f"the result of rank {rank.number} under schedule {number} is lost"
        for rank in world.ranks
        for number, helper in rank.measured
        if id(helper) not in killed and helper._job.is_open and rank.number not in ranks_with_result(folder, number)
    ]


def _end(world: World, folder: JobFolder) -> list[str]:
    """The job has ended with the true reason; or the helper of rank 0 died too, and a daemon ended the job."""
    end = folder.read(bodies.EndBody)
    if end is None:
        return ["the job has no end"]
    allowed = {"finished": ["finished"], "killed": ["terminated"], "terminated": ["terminated"]}[world.ended_by]
    helper = world.helper_of_rank_0
    if helper is None or helper in world.killed_helpers:
        allowed.append("idle")
    if end.reason in allowed:
        return []
    return [f"training was {world.ended_by}, and its record says {end.reason}: {end.message}"]


def _calm(world: World) -> list[str]:
    """After the faults, one daemon leads and all ranks follow the same schedule."""
    if world.calm is False:
        return ["after the faults, no daemon leads, or two, or ranks go on to follow different schedules"]
    return []
