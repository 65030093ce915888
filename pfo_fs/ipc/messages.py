"""Every message between training, its clock process, and the host's helper.

Each message is one frozen struct with a tag; the receiver decodes a packet into the union of what it may get
(`ToHelper`, `ToTraining`), so the receiver refuses a message with a missing field or a wrong type. Records for the
shared directory (jobs, ranks and results) are sent as plain dictionaries, which the helper validates with the models of
those records.
"""

from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta

from pfo_fs.turns import ALL, MOST_TURNS

# Limits of what training accepts from a helper. Other users can write records in the shared directory, and a number
# that does not fit into the 64-bit words of the page shared with the clock process must not reach training.
ScheduleNumber: TypeAlias = Annotated[int, Meta(ge=-1, le=2**53)]
StepNumber: TypeAlias = Annotated[int, Meta(ge=0, le=2**53)]
ClockMHz: TypeAlias = Annotated[int, Meta(ge=0, le=60_000)]
InstructionName: TypeAlias = Annotated[str, Meta(min_length=1, max_length=64)]


TimedStep: TypeAlias = tuple[int, int, float]
"""(step, schedule number, seconds from the step's begin to the end of the rank's last instruction)."""


class Message(msgspec.Struct, frozen=True, kw_only=True, tag=True, tag_field="type"):
    """Base of all messages; on the wire, `type` is the class's name."""


# ---- from training to the host's helper


class GpuToReset(msgspec.Struct, frozen=True):
    """The GPU that a clock process sets, for the helper, which resets the GPU if that process dies.

    Attributes:
        leave_clocks: Whether only the power limit is put back.
    """

    spec: str
    clock_backend: str = "auto"
    leave_clocks: bool = False


class Hello(Message, frozen=True, kw_only=True):
    """The first message of every connection: which rank, training or its clock process, and the job's token.

    A clock process names the GPU that it sets, if it sets one.
    """

    rank: int
    role: Literal["training", "clocks"]
    token: str
    gpu: GpuToReset | None = None


class CreateJob(Message, frozen=True, kw_only=True):
    """Rank 0 requests the job's folder, and a process that schedules; answered by `JobCreated` or `Refused`.

    `job` is a `JobBody`. No process schedules a job whose coordination is `none`: the job only follows the off switch.
    """

    job: dict[str, Any]
    attempt: str


class JoinJob(Message, frozen=True, kw_only=True):
    """A rank registers; answered by `Joined` or `Refused`. `rank_body` is a `RankBody`.

    `directory_id` is that of rank 0's `JobCreated`: a host that sees another directory is refused. `helper_name` is
    that of an earlier `Joined`: a helper that replaces a dead helper writes its records under the same name.
    """

    job_id: str
    attempt: str
    coordination: Literal["daemon", "local", "none"]
    rank_body: dict[str, Any]
    directory_id: str = ""
    helper_name: int | None = None


class AllRanks(Message, frozen=True, kw_only=True):
    """From rank 0, where no daemon schedules: the `RankInfo` of each rank, gathered by `torch.distributed`."""

    rank_infos: list[dict[str, Any]]


class OrderSeen(Message, frozen=True, kw_only=True):
    """The pairs (instruction, stage or None) of the first complete step of this rank."""

    instructions: list[tuple[str, int | None]]


class ScheduleApplied(Message, frozen=True, kw_only=True):
    """A schedule came into force on this rank at `step`; `late`: after the schedule's start step."""

    number: int
    step: int
    late: bool


class ProblemSeen(Message, frozen=True, kw_only=True):
    """Something went wrong in this training process; shown in the job's status."""

    message: str


class LoadsSeen(Message, frozen=True, kw_only=True):
    """From rank 0: what is known of clocks from loads, for the job's status; `known` is a `LoadsKnown`."""

    known: dict[str, Any]


class Goodbye(Message, frozen=True, kw_only=True):
    """Training ends; the helper records the end of the job when this message comes from rank 0."""

    reason: str
    message: str = ""


# ---- from the clock process to the host's helper


SwitchingReport: TypeAlias = dict[str, Any]
"""How the clocks of a rank are switched, and what that costs there: the fields of `models.Switching`."""


class ProgressReport(Message, frozen=True, kw_only=True):
    """The progress of a rank; durations in s, energies in J (`energy_j`: of all steps), clock in MHz (None: default).

    `throttled` says what holds the GPU's clocks back; empty: nothing. `undo_owed` counts the settings of the GPU
    (clock, power limit) that could not be put back yet, `undo_failures` the attempts that have failed so far. `held`:
    the GPU is at default clocks by `ClocksHeld`. `overruled`: `message` says what else decides the GPU's clock.
    """

    step: int
    number: int
    held: bool = False
    iter_time: float | None = None
    iter_energy: float | None = None
    energy_j: float | None = None
    clock_mhz: int | None = None
    message: str = ""
    iteration_times: list[TimedStep] = []
    throttled: str = ""
    overruled: bool = False
    switching: SwitchingReport | None = None
    undo_owed: int = 0
    undo_failures: int = 0


class MeasurementReport(Message, frozen=True, kw_only=True):
    """What was measured under schedule `number`, from step `first_step` on; `result` is a `ProfilingResult`."""

    number: int
    first_step: int
    result: dict[str, Any]


class ClocksReleased(Message, frozen=True, kw_only=True):
    """The clock process has put clock and power limit back, and is about to end."""


# ---- between a power-limit optimizer and the host's helper


MAX_PROFILE_BYTES = 160 << 10
"""A profile goes from the helper to training in one message; this is room for a thousand levels."""


class ReadProfile(Message, frozen=True, kw_only=True):
    """Rank 0 requests the profile of a power-limit optimizer; answered by `ProfileRead`."""

    path: str


class ProfileRead(Message, frozen=True, kw_only=True):
    """Says that there is no profile, that it was read (`content`), or that it is unknown whether there is a profile."""

    profile: Literal["none", "read", "unknown"]
    content: bytes = b""


class SaveProfile(Message, frozen=True, kw_only=True):
    """Requests that the profile is written; `replace`: also in place of a file that is there."""

    path: str
    content: bytes
    replace: bool


class ProfileSaved(Message, frozen=True, kw_only=True):
    """The answer to `SaveProfile`: the profile is written, or a `LogLine` before this message says why it is not."""


class WatchSwitch(Message, frozen=True, kw_only=True):
    """Requests `ClocksHeld` now, and whenever all jobs of the directory are switched off, or on again.

    A job that joins by `JoinJob` gets it without a request.
    """


# ---- from the host's helper to training


class JobCreated(Message, frozen=True, kw_only=True):
    """The job's folder exists; a daemon schedules the job, or rank 0's helper (`local`), or no process (`none`).

    By `directory_id`, other hosts check that they see the same directory.
    """

    job_id: str
    coordination: Literal["daemon", "local", "none"]
    directory_id: str = ""


class Joined(Message, frozen=True, kw_only=True):
    """The rank is registered, or will be as soon as the shared directory can be written.

    `helper_name`: the name of this host's records, to be given to a helper that replaces this one.
    """

    helper_name: int = -1


class Refused(Message, frozen=True, kw_only=True):
    """A request has failed; `taken`: because another process has registered as this rank."""

    message: str
    taken: bool = False


class RankPlan(msgspec.Struct, frozen=True):
    """The pairs (instruction, MHz) of one iteration, and the stage of each where a rank holds several stages."""

    frequencies: Annotated[list[tuple[InstructionName, ClockMHz]], Meta(max_length=65_535)]
    stages: list[int] | None = None

    def __post_init__(self) -> None:
        if self.stages is not None and len(self.stages) != len(self.frequencies):
            raise ValueError(f"{len(self.stages)} stages for {len(self.frequencies)} instructions")


class NewSchedule(Message, frozen=True, kw_only=True):
    """A schedule: each different plan once, and each rank's index into `plans`. Without a plan: default clocks.

    The helper sends it to the ranks of its host; where no daemon schedules, rank 0 broadcasts it to all ranks.
    `start_step` is the first step that follows it; `until`, `after`, `turns` and `by_hand` are those of a `Term`.
    `number` is -1 for default clocks that are not a schedule of the job.
    """

    number: ScheduleNumber
    start_step: StepNumber = 0
    until: StepNumber = 0
    after: ScheduleNumber = -1
    turns: Annotated[list[Annotated[int, Meta(ge=0, le=ALL)]], Meta(max_length=MOST_TURNS)] = []
    by_hand: bool = False
    plans: list[RankPlan] = []
    ranks: dict[int, int] = {}

    def plan_of(self, rank: int) -> RankPlan | None:
        """Returns the plan of one rank; None if its clock is left alone."""
        place = self.ranks.get(rank)
        return self.plans[place] if place is not None and 0 <= place < len(self.plans) else None


class PaceLeaseRenewed(Message, frozen=True, kw_only=True):
    """The scheduling process runs: the schedule in force holds for `lease_s` seconds from now; 0: without an end."""

    lease_s: Annotated[float, Meta(ge=0, le=1e9)]


class ClocksHeld(Message, frozen=True, kw_only=True):
    """Default clocks, whatever the schedule says, until this message comes with an empty `why`.

    `off`: a user has switched pfo-fs off; `removed`: the directory or the job's folder is gone; `lost`: no answer for
    long. Training and the clock processes of the host get it: clock processes do not wait for a step.
    """

    why: Literal["", "off", "removed", "lost"] = ""


class SchedulesWithdrawn(Message, frozen=True, kw_only=True):
    """The helper has sent what the scheduling process has not published: default clocks until the helper sends more."""


class LogLine(Message, frozen=True, kw_only=True):
    """A log record of the helper, which has no output of its own; `level` as in `logging`."""

    level: Annotated[int, Meta(ge=0, le=100)]
    message: str


ToHelper: TypeAlias = (
    Hello
    | CreateJob
    | JoinJob
    | AllRanks
    | OrderSeen
    | ScheduleApplied
    | ProblemSeen
    | LoadsSeen
    | Goodbye
    | ProgressReport
    | MeasurementReport
    | ClocksReleased
    | ReadProfile
    | SaveProfile
    | WatchSwitch
)
ToTraining: TypeAlias = (
    JobCreated
    | Joined
    | Refused
    | NewSchedule
    | PaceLeaseRenewed
    | ClocksHeld
    | SchedulesWithdrawn
    | LogLine
    | ProfileRead
    | ProfileSaved
)
