"""Why Slurm has ended a job: what it says about the job, and what is recorded of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from jobs import make_job

from pfo_fs.coordination.batch_end import batch_end_of, record_slurm_end
from pfo_fs.errors import SlurmSilent
from pfo_fs.store import JobFolder, SharedDirectory
from pfo_fs.store.bodies import BatchEndBody, EndBody, SlurmRun

TERMINATED, FINISHED = EndBody(reason="terminated"), EndBody(reason="finished")


def slurm_job(root: Path, restarts: int = 0, job_id: str = "7", cluster: str = "") -> JobFolder:
    return make_job(root, 1, slurm=SlurmRun(job_id=job_id, restarts=restarts, cluster=cluster).model_dump())


def no_question(job_id: str) -> dict[str, str]:
    raise AssertionError(f"Slurm is asked about {job_id}")


@pytest.mark.parametrize(
    ("said", "exit_code", "end", "cause", "code"),
    [
        ("JobState=COMPLETING Reason=TimeLimit ExitCode=0:0", None, TERMINATED, "time limit", None),
        ("JobState=TIMEOUT Reason=TimeLimit ExitCode=0:0", None, None, "time limit", None),
        ("JobState=COMPLETING Reason=NodeDown ExitCode=0:0", None, None, "node lost", None),
        ("JobState=COMPLETING Reason=OutOfMemory ExitCode=0:125", None, None, "out of memory", None),
        ("JobState=RUNNING Reason=None PreemptTime=2026-11-23T05:34:10", 143, TERMINATED, "preempted", None),
        ("JobState=COMPLETING Reason=None Restarts=1 ExitCode=0:0", None, TERMINATED, "requeued", None),
        ("JobState=COMPLETING Reason=None Restarts=1 NodeStates=down*", None, None, "node lost", None),
        ("JobState=COMPLETING Reason=None PreemptTime=None ExitCode=0:0", 143, TERMINATED, "cancelled", None),
        ("JobState=COMPLETING Reason=None ExitCode=0:9", None, TERMINATED, "cancelled", None),
        ("JobState=COMPLETING Reason=None ExitCode=0:0", 143, None, "cancelled", None),
        ("JobState=COMPLETING Reason=None ExitCode=0:0", 0, FINISHED, "finished", None),
        ("JobState=CANCELLED Reason=None ExitCode=0:15", None, None, "cancelled", None),
        ("JobState=COMPLETING Reason=NonZeroExitCode ExitCode=3:0", None, None, "failed", 3),
        ("JobState=COMPLETING Reason=RaisedSignal:9(Killed) ExitCode=0:9", None, None, "failed", 137),
        ("JobState=RUNNING Reason=None", 3, None, "failed", 3),
        ("JobState=RUNNING Reason=None", 0, FINISHED, "finished", None),
        ("JobState=COMPLETING Reason=None ExitCode=0:0", None, FINISHED, "finished", None),
        ("JobState=RUNNING Reason=None", None, None, None, None),
        ("JobState=RUNNING Reason=None", 143, TERMINATED, None, None),
    ],
)
def test_what_slurm_says_has_one_meaning(
    said: str, exit_code: int | None, end: EndBody | None, cause: str | None, code: int | None
) -> None:
    fields = dict(part.split("=") for part in said.split())
    found = batch_end_of(fields, 0, exit_code, end)
    assert (found and found.cause, found and found.exit_code) == (cause, code)


def test_the_first_record_of_an_end_stays_and_the_second_caller_asks_slurm_nothing(tmp_path: Path) -> None:
    folder, run = slurm_job(tmp_path), SlurmRun(job_id="7")
    shared = SharedDirectory.open(tmp_path)
    assert record_slurm_end(shared, run, cause="preempted") == {folder.job_id: "preempted"}
    assert record_slurm_end(shared, run, ask=no_question) == {}
    assert folder.read_batch_end() == BatchEndBody(cause="preempted")


def test_a_job_whose_ranks_could_not_record_its_end_has_one_afterwards_and_an_end_that_is_there_stays(
    tmp_path: Path,
) -> None:
    killed, crashed = slurm_job(tmp_path), slurm_job(tmp_path, job_id="8")
    crashed.write_end(EndBody(reason="crashed", message="ValueError: 3"))
    shared = SharedDirectory.open(tmp_path)
    for job_id in ("7", "8"):
        record_slurm_end(shared, SlurmRun(job_id=job_id), ask=lambda _: {"JobState": "FAILED", "ExitCode": "1:0"})
    assert killed.read_end() == EndBody(reason="crashed", message="Slurm: failed")
    assert crashed.read_end() == EndBody(reason="crashed", message="ValueError: 3")
    assert crashed.read_batch_end() == BatchEndBody(cause="failed", exit_code=1)


def test_a_new_run_of_a_requeued_job_ends_the_earlier_run_and_not_its_own(tmp_path: Path) -> None:
    first = slurm_job(tmp_path)
    run, running = SlurmRun(job_id="7", restarts=1), {"JobState": "RUNNING", "Restarts": "1"}
    shared = SharedDirectory.open(tmp_path)
    assert record_slurm_end(shared, run, ask=lambda _: running) == {first.job_id: "requeued"}
    second = slurm_job(tmp_path, restarts=1)
    assert record_slurm_end(shared, run, ask=lambda _: running) == {}
    assert second.read_end() is None
    assert first.read_end() == EndBody(reason="terminated", message="Slurm: requeued")


def test_of_several_trainings_in_a_slurm_job_the_last_one_is_what_slurm_has_ended(tmp_path: Path) -> None:
    done, last = slurm_job(tmp_path), slurm_job(tmp_path)
    done.write_end(FINISHED)
    recorded = record_slurm_end(SharedDirectory.open(tmp_path), SlurmRun(job_id="7"), cause="cancelled")
    assert list(recorded) == [max(done.job_id, last.job_id)]


def test_training_that_had_finished_when_the_script_wanted_to_end_it_has_finished(tmp_path: Path) -> None:
    folder = slurm_job(tmp_path)
    folder.write_end(FINISHED)
    recorded = record_slurm_end(SharedDirectory.open(tmp_path), SlurmRun(job_id="7"), cause="time limit")
    assert recorded == {folder.job_id: "finished"}


def test_jobs_of_other_slurm_jobs_and_clusters_are_left_alone(tmp_path: Path) -> None:
    make_job(tmp_path, 1)
    slurm_job(tmp_path, job_id="8")
    slurm_job(tmp_path, cluster="other")
    shared = SharedDirectory.open(tmp_path)
    assert record_slurm_end(shared, SlurmRun(job_id="7", cluster="ci"), ask=no_question) == {}


def test_without_slurms_commands_the_error_says_where_to_call_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm_job(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SlurmSilent, match="scontrol is not there"):
        record_slurm_end(SharedDirectory.open(tmp_path), SlurmRun(job_id="7"))
