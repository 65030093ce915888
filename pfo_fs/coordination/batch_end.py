"""Records why Slurm has ended a job. Training cannot know that: it gets the same SIGTERM at every early end.

`pfo-fs end` calls this in the batch script, or in Slurm's epilog. The first record of a job stays.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Iterator, Mapping

from pfo_fs.errors import RecordError, SlurmSilent, StoreError
from pfo_fs.store import JobFolder, SharedDirectory, layout
from pfo_fs.store.bodies import BatchEndBody, Cause, EndBody, SlurmRun

Fields = Mapping[str, str]
"""What `scontrol show job` says about a job."""

_ANSWERS_WITHIN_S = 10.0
_KILLED = (128 + 15, 128 + 9)
"""Exit codes of what Slurm ends: SIGTERM, and SIGKILL for what is still there some seconds later (`KillWait`)."""
_NOT_YET = ("", "None", "Unknown", "N/A")
_CAUSES: tuple[tuple[set[str], Cause], ...] = (
    ({"TIMEOUT", "TimeLimit", "DEADLINE"}, "time limit"),
    ({"OUT_OF_MEMORY", "OutOfMemory"}, "out of memory"),
    ({"NODE_FAIL", "NodeDown", "BOOT_FAIL"}, "node lost"),
    ({"PREEMPTED"}, "preempted"),
    ({"CANCELLED"}, "cancelled"),
)
"""States and reasons of Slurm. While a job is COMPLETING, Slurm shows the reason, and no other state."""


def record_slurm_end(
    shared: SharedDirectory,
    run: SlurmRun,
    *,
    exit_code: int | None = None,
    cause: Cause | None = None,
    ask: Callable[[str], Fields] | None = None,
) -> dict[str, Cause]:
    """Records the end of the last training in this run of a Slurm job, and of those in earlier runs.

    Args:
        exit_code: That of training, if the batch script has waited for it.
        cause: Why training that has not finished ends, if the batch script knows; otherwise Slurm is asked, unless
            the end is recorded.
        ask: Returns what Slurm says about a job; `ask_slurm` if None.

    Returns:
        The causes that this call has recorded, by the id of our job.

    Raises:
        SlurmSilent: Slurm had to be asked and did not answer.
        StoreError: The shared directory cannot be used.
    """
    recorded: dict[str, Cause] = {}
    seen_last = False
    for folder, made_in in _folders_of(shared, run):
        earlier = made_in.restarts < run.restarts
        if not earlier and seen_last:
            continue  # Slurm has not ended this training: the batch script went on after it
        seen_last = seen_last or not earlier
        if layout.BATCH_END in folder.names():
            continue
        end = folder.read_end()
        if earlier:
            found = BatchEndBody(cause="requeued") if end is None or end.reason == "terminated" else None
        elif cause is not None:
            over = end is not None and end.reason == "finished"  # before the script sent SIGTERM
            found = BatchEndBody(cause="finished" if over else cause)
        else:
            found = batch_end_of((ask or ask_slurm)(run.job_id), run.restarts, exit_code, end)
        if found is not None and folder.write_batch_end(found):
            recorded[folder.job_id] = found.cause
            folder.write_end(_end_for(found.cause))
    return recorded


def _folders_of(shared: SharedDirectory, run: SlurmRun) -> Iterator[tuple[JobFolder, SlurmRun]]:
    """Yields the folders of a Slurm job, newest first, and in which run of it each was made; none of later runs."""
    for job_id in shared.newest_job_ids():
        folder = shared.job(job_id)
        try:
            job = folder.read_job()
        except (RecordError, StoreError):
            continue
        made_in = job.slurm if job is not None else None
        if made_in is None or (made_in.cluster, made_in.job_id) != (run.cluster, run.job_id):
            continue
        if made_in.restarts <= run.restarts:
            yield folder, made_in


def _end_for(cause: Cause) -> EndBody:
    """Returns the job's end for ranks that could not record their own, because they were killed or their node died."""
    if cause == "finished":
        return EndBody(reason="finished")
    return EndBody(reason="crashed" if cause == "failed" else "terminated", message=f"Slurm: {cause}")


def batch_end_of(fields: Fields, restarts: int, exit_code: int | None, end: EndBody | None) -> BatchEndBody | None:
    """Returns why a run of a Slurm job has ended; None while that is not known.

    Args:
        fields: What Slurm says about the job.
        restarts: How often the job had been started again before this run.
        exit_code: That of training, if it is known.
        end: The end that training has recorded.
    """
    state, reason = fields.get("JobState", ""), fields.get("Reason", "")
    if fields.get("PreemptTime", "") not in _NOT_YET:
        return BatchEndBody(cause="preempted")
    if int(fields.get("Restarts", "0")) > restarts:
        return BatchEndBody(cause="node lost" if "down" in fields.get("NodeStates", "") else "requeued")
    for words, cause in _CAUSES:
        if state in words or reason in words:
            return BatchEndBody(cause=cause)
    code = _exit_code(fields.get("ExitCode", "")) if exit_code is None else exit_code
    told = end.reason if end is not None else ""
    if state == "RUNNING" and (exit_code is None or (code in _KILLED and told == "terminated")):
        return None  # SIGTERM that Slurm did not send
    if state == "COMPLETING" and reason == "None":
        # Slurm ends the job. If the batch script told an exit code, it still runs. Only scancel leaves no other sign.
        cancelled = told != "finished" and (code or exit_code is not None or told == "terminated")
        return BatchEndBody(cause="cancelled" if cancelled else "finished")
    return BatchEndBody(cause="failed", exit_code=code) if code else BatchEndBody(cause="finished")


def _exit_code(text: str) -> int:
    """Returns the exit code in Slurm's `code:signal`, as a shell shows it."""
    found = re.fullmatch(r"(\d+):(\d+)", text)
    if found is None:
        return 0
    code, number = map(int, found.groups())
    return min(255, 128 + number if number else code)


def ask_slurm(job_id: str) -> Fields:
    """Returns the fields of `scontrol show job`, and `NodeStates`, the states of this run's nodes after a requeue.

    Raises:
        SlurmSilent: scontrol is not there, fails, or does not answer in time.
    """
    text = _run("scontrol", "-o", "show", "job", job_id)
    fields = {key: value for key, is_, value in (part.partition("=") for part in text.split()) if is_}
    nodes = os.environ.get("SLURM_JOB_NODELIST") or os.environ.get("SLURM_NODELIST")  # the latter in an epilog
    if fields.get("Restarts", "0") != "0" and nodes:
        fields["NodeStates"] = _run("sinfo", "-h", "-n", nodes, "-o", "%T")
    return fields


def _run(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_ANSWERS_WITHIN_S, check=True)
    except FileNotFoundError:
        raise SlurmSilent(f"{command[0]} is not there: run `pfo-fs end` where Slurm's commands are") from None
    except subprocess.CalledProcessError as error:
        raise SlurmSilent(f"{' '.join(command)}: {error.stderr.strip()}") from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SlurmSilent(f"{' '.join(command)}: {error}") from None
    return done.stdout
