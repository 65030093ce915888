"""What the records of the shared directory hold, file by file (the layout is in `directory.py`)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from pfo_fs.models import FrequencySchedule, JobInfo, PlanInputs, ProfilingResult, RankInfo


def _printable(text: Any) -> Any:
    """What people and files say may hold halves of surrogate pairs, which nothing can write."""
    return text.encode("utf-8", "replace").decode() if isinstance(text, str) else text


Text = Annotated[str, BeforeValidator(_printable), Field(max_length=4000)]
"""For people."""

Seconds = Annotated[float, Field(gt=0, lt=1e7, allow_inf_nan=False)]


class _Body(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class JobBody(_Body):
    """`job.json`: rank 0, once.

    `scheduler` and `scheduler_args` are what the job asks for; empty: whatever the coordinator's settings say.
    `model_key` says what is trained: profiles are shared by jobs with the same one.
    """

    job_info: JobInfo
    coordination: Literal["auto", "daemon", "local"]
    scheduler: str = Field(default="", max_length=200)
    scheduler_args: dict[str, Any] = {}
    model_key: str = Field(default="", max_length=200)
    profile_steps: int = Field(default=5, ge=1, le=1000)
    host: str = Field(default="", max_length=255)
    started: str = Field(default="", max_length=40, description="UTC, for people")
    versions: dict[str, str] = {}


class RankBody(_Body):
    """`ranks/<rank>.json`: that rank, once. `nonce` tells two claimants of one rank apart."""

    rank_info: RankInfo
    nonce: str = Field(max_length=64)
    host: str = Field(default="", max_length=255)
    pid: int = 0
    gpu_name: str = Field(default="", max_length=200)
    gpu_uuid: str = Field(default="", max_length=100)
    message: Text = ""


class OrderBody(_Body):
    """`order/<rank>.json`: that rank, once: the instructions of its first complete step, as (name, stage or None)."""

    rank: int = Field(ge=0)
    instructions: list[tuple[str, int | None]] = Field(max_length=65_535)


class ClaimBody(_Body):
    """`coordinator.json`: whoever schedules this job, once: a daemon (any that leads), or rank 0 of the job itself."""

    kind: Literal["daemon", "local"]
    nonce: str = Field(max_length=64)


class Source(_Body):
    """Where a schedule came from: the scheduler's request `revision`, or a person's YAML with this hash.

    The scheduler made it for `plan_inputs`, after it had seen the results of schedule `observed` (-1: of none) with the
    plan inputs `observed_with`: a replay needs all three. `policy` names the scheduler and its arguments.
    """

    kind: Literal["scheduler", "yaml"]
    revision: int = Field(default=-1, ge=-1)
    sha256: str = Field(default="", max_length=64)
    policy: str = Field(default="", max_length=100)
    plan_inputs: PlanInputs = PlanInputs()
    observed: int = Field(default=-1, ge=-1)
    observed_with: PlanInputs | None = None


class IndexBody(_Body):
    """`sched/<number>/index.json`: commits schedule `number`, once, after its plan files are in place.

    `files` names the plan file of each group of ranks: of a stage where all its ranks do the same (`"stage:3"`),
    else of one rank (`"rank:17"`). Equal plans share a file. `steps`: for how many steps it holds at most, 0 for ever:
    a schedule that is there for measuring must not outlive whoever wants to know.
    """

    number: int = Field(ge=0)
    generation: int = Field(ge=0)
    start_step: int = Field(ge=0)
    source: Source
    steps: int = Field(default=0, ge=0)
    files: dict[str, str] = Field(max_length=1_000_000)


class PlanBody(_Body):
    """`sched/<number>/<plan>.json`: one schedule; its `rank` is the first of those that follow it."""

    schedule: FrequencySchedule


class CurrentBody(_Body):
    """`current.json`: the coordinator, replaced: the one file that every host polls.

    `number` is -1 before the first schedule. `yaml_problem` says why the last `schedule.yaml` was refused, and
    `status_text` what the scheduler is doing. `converged`: it has measured the schedule in force, and leaves it.
    `lease_s`: ranks follow the schedule only so many seconds after `heartbeat` changed last; 0: for ever.
    """

    generation: int = Field(ge=0)
    number: int = Field(ge=-1)
    start_step: int = Field(default=0, ge=0)
    state: Literal["waiting", "running", "broken", "ended"]
    message: Text = ""
    yaml_problem: Text = ""
    status_text: Text = ""
    converged: bool = False
    source: Source | None = None
    lease_s: float = Field(default=0.0, ge=0)
    heartbeat: int = 0


class ResultBody(_Body):
    """`prof/<number>/<rank>.json`: that rank, once."""

    result: ProfilingResult
    first_step: int = Field(default=0, ge=0)
    late: bool = False


class RankProgress(_Body):
    """Where one rank is; durations in s, energies in J, clocks in MHz. `step_age_s`: how long it has been there."""

    rank: int = Field(ge=0)
    step: int = Field(default=-1, ge=-1)
    step_age_s: float = Field(default=0.0, ge=0)
    number: int = -1
    iter_time: float | None = None
    iter_energy: float | None = None
    clock_mhz: int | None = None
    error: Text = ""


class IterationTimesBody(_Body):
    """`iteration_times/<rank>.json`: the helper of that rank's host, replaced: how long its last iterations took.

    `steps` holds (step, schedule number, s until the rank's last instruction had ended); `throttled` says what holds
    its GPU's clocks back, if anything does.
    """

    rank: int = Field(ge=0)
    steps: list[tuple[int, int, Seconds]] = Field(default=[], max_length=64)
    throttled: str = Field(default="", max_length=200)


class CachedProfileBody(_Body):
    """`cached_profile.json`: the coordinator, once: the profile CSV of earlier jobs as this one began."""

    source: str = Field(default="", max_length=400)
    csv: str = Field(default="", max_length=6_000_000)


class ModelBody(_Body):
    """`model.json`: the coordinator, replaced: what the scheduler plans with, for `pfo-fs report`.

    Seconds, joules, watts; `full_*` is an iteration with everything at the highest clock, as measured: `full_time_s`
    until the last instruction has ended, `full_energy_j` of all GPUs. `power_drift_factor`: power now, as a
    multiple of the power then. `profile` is the path of what was measured, below the shared directory.
    """

    blocking_power_w: float = Field(ge=0)
    delay_s: float = Field(ge=0)
    overhead_s: float = Field(ge=0)
    switch_time_s: float = Field(ge=0)
    full_time_s: float = Field(ge=0)
    full_energy_j: float = Field(ge=0)
    power_drift_factor: float = Field(gt=0)
    time_margin: float
    gpus_per_rank: int = Field(ge=1)
    profile: str = Field(default="", max_length=600)


class ProgressBody(_Body):
    """`progress/<rank>.json`: the helper process of one host, replaced; named after the first of its ranks."""

    ranks: list[RankProgress] = Field(max_length=4096)
    store_error: Text = ""


class EndBody(_Body):
    """`end.json`: once: rank 0 at the end of training, or the daemon when the job is given up."""

    reason: Literal["finished", "interrupted", "crashed", "idle"]
    message: Text = ""


class DaemonBody(_Body):
    """`daemon.json`: the leading daemon, replaced; `counter` moves as long as it lives."""

    generation: int = Field(ge=0)
    counter: int = Field(ge=0)
    host: str = Field(max_length=255)
    pid: int
    version: str = Field(max_length=40)
    scheduler: str = Field(max_length=200)
    interval_s: float = Field(gt=0)
    stopped: bool = False


class LeaderBody(_Body):
    """`leaders/<generation>.json`: the daemon that leads in this generation, once."""

    generation: int = Field(ge=0)
    nonce: str = Field(max_length=64)
    host: str = Field(max_length=255)
    pid: int
