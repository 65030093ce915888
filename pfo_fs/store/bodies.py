"""The contents of the records of the shared directory, file by file (`layout.py` has their paths).

The docstring of a file's body begins with its path, its writer, and whether it is written once or replaced. Every field
has a type with limits: a test refuses a bare `int`, `float` or `str`.
"""

import math
from typing import Annotated, Any, Literal, Optional

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from pfo_fs.loads_known import LoadsKnown
from pfo_fs.models import (
    MAX_INSTRUCTIONS,
    MAX_WORLD_SIZE,
    Count,
    FrequencySchedule,
    InstructionName,
    JobInfo,
    Joules,
    Many,
    Megahertz,
    PlanInputs,
    PositiveSeconds,
    ProfilingResult,
    RankInfo,
    RankNumber,
    ScheduleNumber,
    ScheduleNumberOrNone,
    Seconds,
    ShortText,
    StageNumber,
    StepNumber,
    StepNumberOrNone,
    Switching,
    Text,
    Watts,
    sharing_equal,
)
from pfo_fs.turns import ALL, MOST_TURNS, ROUND, Term

MOST_CHECKED = 2048
"""The most steps of one check: a rank's result has some megabytes, and meanwhile the job saves only half as much."""
RandomId = Annotated[str, Field(max_length=64, pattern=r"^[ -~]*$")]
"""Printable ASCII characters, random or a hash; they are compared, never shown."""
ProcessId = Annotated[int, Field(ge=0, le=2**31)]
PlanFileName = Annotated[str, Field(pattern=r"^(stage|rank)-\d{1,7}\.[0-9a-f]{12}\.json$")]
RankGroup = Annotated[str, Field(pattern=r"^(stage|rank):\d{1,7}$")]
WhoFollows = Annotated[int, Field(ge=0, le=ALL)]


def plain_json(value: dict[str, object]) -> dict[str, object]:
    """Refuses arguments that are nested deeply, not finite, too long or too many."""
    waiting: list[tuple[object, int]] = [(value, 0)]
    seen = 0
    while waiting:
        item, depth = waiting.pop()
        seen += 1
        if seen > 100_000 or depth > 16:
            raise ValueError("too many values, or nested too deeply")
        if isinstance(item, dict):
            waiting += [(part, depth + 1) for pair in item.items() for part in pair]
        elif isinstance(item, (list, tuple)):
            waiting += [(part, depth + 1) for part in item]
        elif isinstance(item, str):
            if len(item) > 10_000 or not item.replace("\n", "").replace("\t", "").isprintable():
                raise ValueError("a text has control characters or is too long")
        elif isinstance(item, (int, float)) and not (abs(item) <= 2**63 and math.isfinite(item)):
            raise ValueError("a number is not finite or too large")
    return value


class _Body(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False)


class DirectoryBody(_Body):
    """`directory.json`: the process that made the shared directory, once. Hosts compare the id with a job's."""

    directory_id: RandomId
    host: ShortText = ""


class JobBody(_Body):
    """`job.json`: rank 0, once.

    No process schedules a job whose `coordination` is `none`: the job sets one power limit, or one clock, itself.
    `scheduler` and `scheduler_args` are those that the job requests; empty: those of the coordinator's settings.
    """

    job_info: JobInfo
    coordination: Literal["auto", "daemon", "local", "none"]
    scheduler: ShortText = ""
    scheduler_args: Annotated[dict[str, Any], AfterValidator(plain_json)] = {}
    profile_steps: Annotated[int, Field(ge=1, le=1000)] = 5
    host: ShortText = ""
    started: ShortText = Field(default="", description="UTC, as text")
    versions: dict[ShortText, ShortText] = Field(default={}, max_length=100)


class RankBody(_Body):
    """What a rank says about itself. `nonce` distinguishes two processes that claim one rank.

    `clock_backend` names the way in which its clocks are set; empty while it is not known. `poll_s`: how often its
    host looks for a new schedule, in s; the daemon may see another kind of file system.
    """

    rank_info: RankInfo
    nonce: RandomId
    host: ShortText = ""
    pid: ProcessId = 0
    gpu_name: ShortText = ""
    gpu_uuid: ShortText = ""
    clock_backend: ShortText = ""
    message: Text = ""
    poll_s: Annotated[float, Field(ge=0, le=60)] = 0.0


CLOCK_PROCESS_DIED = "nothing: the clock process has died"
"""What `clock_backend` says in place of a way to set clocks."""
MOST_NAMES_PER_FILE = 32
"""The most ranks in one record: some file systems allow few names of one file (GlusterFS on ext4 refuses the 49th)."""


class RanksBody(_Body):
    """`ranks/<rank>.json`: the helper of one host, once: ranks that register together; the file has a name for each."""

    ranks: list[RankBody] = Field(min_length=1, max_length=MOST_NAMES_PER_FILE)


class OrderBody(_Body):
    """`order/<rank>.json`: the helper of a stage's first rank, replaced: its instructions, (name, stage or None)."""

    rank: RankNumber
    instructions: Annotated[Many[tuple[InstructionName, StageNumber | None]], AfterValidator(sharing_equal)] = Field(
        max_length=MAX_INSTRUCTIONS
    )


class ClaimBody(_Body):
    """`coordinator.json`: the process that schedules this job, once: the leading daemon, or rank 0 of the job."""

    kind: Literal["daemon", "local"]
    nonce: RandomId


class Source(_Body):
    """The origin of a schedule: the scheduler's request `revision`, or a user's `schedule.yaml` with this hash.

    The scheduler made it for `plan_inputs`, after it had read the results of schedule `observed` (-1: of none) with the
    plan inputs `observed_with`: a replay needs all three. `policy` names the scheduler and its arguments.

    Where `check` is not empty, the schedule only repeats the one before, for `pfo-fs check`, which has asked for it by
    this nonce: its results are for that command alone.
    """

    kind: Literal["scheduler", "yaml"]
    revision: ScheduleNumberOrNone = -1
    sha256: RandomId = ""
    policy: ShortText = ""
    plan_inputs: PlanInputs = PlanInputs()
    observed: ScheduleNumberOrNone = -1
    observed_with: PlanInputs | None = None
    check: RandomId = ""


class OfSchedule(_Body):
    """In force from step `start_step` on; `until`, `after` and `turns` are those of a `Term`."""

    number: ScheduleNumber
    start_step: StepNumber
    until: StepNumber = 0
    after: ScheduleNumberOrNone = -1
    turns: list[WhoFollows] = Field(default=[], max_length=MOST_TURNS)


class IndexBody(OfSchedule):
    """`sched/<number>/index.json`: commits schedule `number`, once, after its plan files are in place.

    `files` names the plan file of each group of ranks: of a stage where all its ranks do the same (`"stage:3"`),
    else of one rank (`"rank:17"`). A schedule for measuring ends by itself, also when the coordinator that measures
    dies.
    """

    generation: ScheduleNumber
    source: Source
    files: dict[RankGroup, PlanFileName] = Field(max_length=100_000)

    def plan_file(self, rank_info: RankInfo) -> str | None:
        """Returns the name of the plan file of a rank; None: its clock is left alone."""
        return self.files.get(f"rank:{rank_info.rank}") or self.files.get(f"stage:{rank_info.pp_rank}")

    @property
    def term(self) -> Term:
        """For how long the schedule holds, and who follows it meanwhile."""
        by_hand = self.source.kind == "yaml" and not self.source.check
        return Term(self.until, self.after, tuple(self.turns), by_hand)

    @property
    def stays(self) -> bool:
        """Whether the schedule holds for ever; if not, it only measures, or a person wants it for some steps."""
        return self.term.stays(self.number)


class PlanBody(OfSchedule):
    """`sched/<number>/<plan>.json`: the coordinator, once: what `ranks` do in a step; `<rank>.json` has the same.

    `frequencies` and `stages` are those of `FrequencySchedule`: (instruction, MHz) in order, 0 MHz leaves the clock
    alone. `index.json` is the commit: a plan that it does not name is not in force.
    """

    ranks: Many[RankNumber] = Field(min_length=1, max_length=MAX_WORLD_SIZE)
    frequencies: Many[tuple[InstructionName, Megahertz]] = Field(max_length=MAX_INSTRUCTIONS)
    stages: list[StageNumber] | None = Field(default=None, max_length=MAX_INSTRUCTIONS)

    def schedule(self, rank: int) -> FrequencySchedule:
        """Returns the plan as the schedule of one of its ranks; raises `ValueError` where it is no valid one."""
        return FrequencySchedule(rank=rank, frequencies=self.frequencies, stages=self.stages)


class CurrentBody(_Body):
    """`current.json`: the coordinator, replaced: the one file that every host polls.

    `number` is -1 before the first schedule. `yaml_problem` says why the last `schedule.yaml` was refused, and
    `status_text` what the scheduler is doing. `converged`: the scheduler has measured the schedule in force, and keeps
    it. `lease_s`: ranks follow the schedule for this time after the last change of `heartbeat`, in s; 0: for ever.
    `poll_s`: a host reads this file at most once in this time, in s; 0: as often as it likes.
    """

    generation: ScheduleNumber
    number: ScheduleNumberOrNone
    start_step: StepNumber = 0
    state: Literal["waiting", "running", "broken", "ended"]
    message: Text = ""
    yaml_problem: Text = ""
    status_text: Text = ""
    converged: bool = False
    source: Source | None = None
    lease_s: Seconds = 0.0
    heartbeat: Count = 0
    poll_s: Annotated[float, Field(ge=0, le=60)] = 0.0


class ResultBody(_Body):
    """What a rank measured."""

    result: ProfilingResult
    first_step: StepNumber = 0
    late: bool = False


class ResultsBody(_Body):
    """`prof/<number>/<rank>.json`: the helper of one host, once: what its ranks measured; `<rank>` is the first."""

    results: Many[ResultBody] = Field(min_length=1, max_length=4096)


class RankProgress(_Body):
    """The progress of one rank; durations in s, energies in J, clocks in MHz.

    `step_age_s` is the time since its last report, `energy_j` the energy of all steps so far.
    `undo_owed` counts the settings of its GPU (clock, power limit) that could not be put back yet, `undo_failures` the
    attempts that have failed so far. `held`: its clock process was told to keep default clocks, and the GPU has them.
    `overruled`: something else decides the GPU's clock. `loads`: on rank 0, what is known of clocks from loads.
    """

    rank: RankNumber
    step: StepNumberOrNone = -1
    step_age_s: Seconds = 0.0
    number: ScheduleNumberOrNone = -1
    iter_time: Seconds | None = None
    iter_energy: Joules | None = None
    energy_j: Joules | None = None
    clock_mhz: Megahertz | None = None
    error: Text = ""
    clock_backend: ShortText = ""
    switching: Switching | None = None
    undo_owed: Count = 0
    undo_failures: Count = 0
    held: bool = False
    overruled: bool = False
    loads: LoadsKnown | None = None


class IterationTimesBody(_Body):
    """`iteration_times/<rank>.json`: the helper of that rank's host, replaced: how long its last iterations took.

    `steps` holds (step, schedule number, seconds from the step's begin to the end of the rank's last instruction);
    `throttled` says what holds the GPU's clocks back; empty: nothing.
    """

    rank: RankNumber
    steps: list[tuple[StepNumber, ScheduleNumberOrNone, PositiveSeconds]] = Field(default=[], max_length=64)
    throttled: ShortText = ""


class CheckBody(_Body):
    """`check.json`: `pfo-fs check`, once: asks that the schedule in force is measured against default clocks.

    `steps` steps run in turns of `block` steps each. The coordinator removes the file once it has begun that.
    """

    nonce: Annotated[RandomId, Field(min_length=8)]
    block: Annotated[int, Field(ge=1, le=MOST_TURNS // len(ROUND))]
    steps: Annotated[int, Field(ge=len(ROUND), le=MOST_CHECKED)]


class ModelBody(_Body):
    """`model.json`: the coordinator, replaced: what the scheduler plans with, for `pfo-fs report`.

    In W and s: the power of a GPU that waits, the delay from rank to rank, the time of an iteration at max clocks, and
    the power of all GPUs at their lowest clocks. `energy_saved` and `more_time` are relative to default clocks.
    `off_target` is the share by which time is above the target; above the time that a target in W needs. All are
    measured of the plan in force beside `default_steps` steps at default clocks. `energy_saved_error` and
    `more_time_error` are standard errors. None: not measured yet. `number` is the schedule of the newest results;
    `last` is the newest model with `energy_saved`, if this one has none.
    """

    blocking_power_w: Annotated[Watts, Field(ge=0)]
    delay_s: Seconds
    energy_saved: Annotated[float, Field(ge=-1e6, le=1)] | None = None
    more_time: Annotated[float, Field(ge=-1, le=1e6)] | None = None
    off_target: Annotated[float, Field(ge=-1, le=1e6)] | None = None
    energy_saved_error: Annotated[float, Field(ge=0, le=1e6)] | None = None
    more_time_error: Annotated[float, Field(ge=0, le=1e6)] | None = None
    default_steps: Count = 0
    shortest_s: Seconds | None = None
    lowest_power_w: Annotated[Watts, Field(ge=0)] | None = None
    number: ScheduleNumberOrNone = -1
    last: Optional["ModelBody"] = None


class ProgressBody(_Body):
    """`progress/<name>.json`: the helper process of one host, replaced; `name` is the first of its ranks."""

    name: RankNumber = 0
    ranks: list[RankProgress] = Field(max_length=4096)
    store_error: Text = ""


class EndBody(_Body):
    """`end.json`: once: rank 0 at the end of training, or the daemon when the job is given up."""

    reason: Literal["finished", "interrupted", "terminated", "crashed", "idle"]
    message: Text = ""


class DaemonBody(_Body):
    """`daemon.json`: the leading daemon, replaced; `counter` grows while the daemon runs."""

    generation: ScheduleNumber
    counter: Count
    host: ShortText
    pid: ProcessId
    version: ShortText
    scheduler: ShortText
    interval_s: Annotated[float, Field(gt=0, le=60)]
    stopped: bool = False


class LeaderBody(_Body):
    """`leaders/<generation>.json`: the daemon that leads in this generation, once."""

    generation: ScheduleNumber
    nonce: RandomId
    host: ShortText
    pid: ProcessId
