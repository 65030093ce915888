"""The data types that every room uses, with the names and fields of Zeus's `pipeline_frequency.common`.

Unknown keys are ignored on reading, so that ranks and daemon of different releases understand each other.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Annotated, TypeAlias, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    FailFast,
    Field,
    field_validator,
    model_validator,
)

from pfo_fs.errors import plain_text

T = TypeVar("T")

MAX_WORLD_SIZE = 1_000_000
MAX_INSTRUCTIONS = 65_535
"""Longest instruction list of one rank in one iteration (64 stages x 1,000 micro-batches need 2,000)."""
MAX_JOB_INSTRUCTIONS = 400_000
"""Most instructions in all different lists of a job: in a plan file, in orders, in schedules (64 x 2,000 = 128,000)."""

# Every number and text that is read from a file or a message has one of these types, so that no value of a record can
# overflow a machine word, a waiting time or a sum, or reach a terminal with control characters.

MAX_SCHEDULE_NUMBER = 999_999_999
RankNumber = Annotated[int, Field(ge=0, lt=MAX_WORLD_SIZE)]
StageNumber = Annotated[int, Field(ge=0, lt=MAX_WORLD_SIZE)]
Degree = Annotated[int, Field(ge=1, le=MAX_WORLD_SIZE)]
ScheduleNumber = Annotated[int, Field(ge=0, le=MAX_SCHEDULE_NUMBER)]
ScheduleNumberOrNone = Annotated[int, Field(ge=-1, le=MAX_SCHEDULE_NUMBER)]
"""-1: no schedule."""
StepNumber = Annotated[int, Field(ge=0, le=10**12)]
StepNumberOrNone = Annotated[int, Field(ge=-1, le=10**12)]
"""-1: before the first step."""
Count = Annotated[int, Field(ge=0, le=2**53)]
"""A count that only grows: of polls, heartbeats, replacements of a file."""
Megahertz = Annotated[int, Field(ge=0, le=60_000)]
Seconds = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]
PositiveSeconds = Annotated[float, Field(gt=0, le=1e9, allow_inf_nan=False)]
Joules = Annotated[float, Field(ge=-1e15, le=1e15, allow_inf_nan=False)]
"""Measured: the difference of two counters may be a little below 0."""
Watts = Annotated[float, Field(ge=-1e12, le=1e12, allow_inf_nan=False)]
"""Measured or fitted: a fit may go below 0."""
Ratio = Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)]
MAX_ITERATIONS = 100_000
"""Most iterations in one result."""
Many = Annotated[list[T], FailFast()]
"""A list that is refused at its first wrong value: to report a million wrong values takes 1 GB and some seconds."""


def _cleaned(max_chars: int) -> BeforeValidator:
    return BeforeValidator(lambda text: plain_text(text, max_chars) if isinstance(text, str) else text)


InstructionName = Annotated[str, _cleaned(64), Field(min_length=1)]
Text = Annotated[str, _cleaned(4000)]
"""One line that is safe to show in a log or a terminal; a longer one is cut."""
ShortText = Annotated[str, _cleaned(255)]
"""The same for names of hosts, programs and GPUs."""

InstructionOrder: TypeAlias = Sequence[tuple[str, "int | None"]]
"""The instructions of one iteration of one rank, in order: (name, stage or None where the rank holds one stage)."""
InstructionOrders: TypeAlias = Mapping[int, "InstructionOrder | None"]
"""The order of each rank; None, or no entry, where it is not known yet."""

Pair = TypeVar("Pair", bound="tuple[str, int | None]")

_UNSAFE = re.compile(r"[^A-Za-z0-9._=-]+")
_MAX_METADATA_CHARS = 80
"""Longest text about a job in its name, which is a part of paths."""


def sharing_equal(pairs: list[Pair]) -> list[Pair]:
    """Returns the pairs, with equal pairs as one object: instructions repeat, and this takes a tenth of the memory."""
    known: dict[Pair, Pair] = {}
    return [known.setdefault(pair, pair) for pair in pairs]


class _Model(BaseModel):
    model_config = ConfigDict(extra="ignore", validate_assignment=True, allow_inf_nan=False)


def counts_whole_module(gpu_name: str) -> bool:
    """Whether a GPU's energy counter may count the whole module, with the CPU, as on GH200 (Zeus, pull request 172)."""
    return re.search(r"G[HB][23]00", gpu_name) is not None


def safe_name(text: str) -> str:
    """Returns `text` as something that is safe inside a file name on any file system.

    ASCII letters, digits and `._=-` stay, other characters become `_`. Leading dots are removed, and the result is cut
    to 80 characters.
    """
    return _UNSAFE.sub("_", text).lstrip(".")[:_MAX_METADATA_CHARS]


class JobInfo(_Model):
    """A training job.

    Attributes:
        job_id: Name of the job's folder, made by `set_job_id`; empty until then.
        world_size: Number of ranks, the product of the three degrees.
        job_metadata: Free text that describes the job; the job id ends in a safe form of it.
    """

    job_id: str = Field(default="", max_length=255)
    pp_degree: Degree
    dp_degree: Degree
    tp_degree: Degree
    world_size: Degree
    job_metadata: Text | None = None

    @field_validator("job_id")
    @classmethod
    def _job_id_is_a_plain_name(cls, job_id: str) -> str:
        if job_id and not is_safe_job_id(job_id):
            raise ValueError(f"job id {job_id!r} is not a plain folder name")
        return job_id

    @model_validator(mode="after")
    def _world_size_is_the_product(self) -> JobInfo:
        product = self.pp_degree * self.dp_degree * self.tp_degree
        if product != self.world_size:
            raise ValueError(
                f"world_size {self.world_size} is not pp_degree {self.pp_degree} x dp_degree {self.dp_degree} "
                f"x tp_degree {self.tp_degree} = {product}"
            )
        return self

    def set_job_id(self, scheduler_name: str) -> None:
        """Sets `job_id` to `YYYY-MM-DD-HH-MM-SS+dpN+ppN+tpN+Scheduler[+metadata]`.

        The store appends `.2`, `.3`, ... when two jobs of one shape start in the same second.
        """
        parts = [
            datetime.now().strftime("%Y-%m-%d-%H-%M-%S"),
            f"dp{self.dp_degree}",
            f"pp{self.pp_degree}",
            f"tp{self.tp_degree}",
            safe_name(scheduler_name) or "unnamed",
        ]
        metadata = safe_name(self.job_metadata or "")
        if metadata:
            parts.append(metadata)
        self.job_id = "+".join(parts)


def is_safe_job_id(job_id: str) -> bool:
    """Returns whether `job_id` is a plain folder name: no separators, no leading dot, at most 255 bytes."""
    return bool(re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._+=-]{0,254}", job_id))


class RankInfo(_Model):
    """One rank of a job.

    Attributes:
        pp_rank: Rank in the pipeline-parallel group, which is the stage where a rank holds one stage.
        available_frequencies: Graphics clocks that the rank's GPU offers, in MHz; empty where clocks cannot be set.
        host: The name of the rank's host; empty if it is not known.
    """

    rank: RankNumber
    dp_rank: RankNumber
    pp_rank: RankNumber
    tp_rank: RankNumber
    available_frequencies: list[Megahertz] = Field(max_length=4096)
    host: ShortText = ""


class FrequencySchedule(_Model):
    """What one rank does in one iteration, in order.

    Attributes:
        frequencies: One (instruction, MHz) for each instruction of the iteration; 0 MHz leaves the clock alone.
        stages: The stage of each instruction, one per entry of `frequencies`; None for a rank that holds one stage.
    """

    rank: RankNumber
    frequencies: list[tuple[str, int]] = Field(max_length=MAX_INSTRUCTIONS)
    stages: list[StageNumber] | None = Field(default=None, max_length=MAX_INSTRUCTIONS)

    @field_validator("frequencies")
    @classmethod
    def _names_and_clocks_are_plausible(cls, frequencies: list[tuple[str, int]]) -> list[tuple[str, int]]:
        for pair in dict.fromkeys(frequencies):
            name, mhz = pair
            if not 0 < len(name) <= 64 or not name.isprintable():
                position = frequencies.index(pair)
                raise ValueError(f"instruction {position}: the name must have 1 to 64 printable characters")
            if not 0 <= mhz <= 60_000:
                position = frequencies.index(pair)
                raise ValueError(f"instruction {position} ({name}): {mhz} MHz is not a clock; use 0 to leave it alone")
        return sharing_equal(frequencies)

    @model_validator(mode="after")
    def _stages_match(self) -> FrequencySchedule:
        if self.stages is not None and len(self.stages) != len(self.frequencies):
            raise ValueError(f"rank {self.rank}: {len(self.stages)} stages for {len(self.frequencies)} instructions")
        return self


class InstructionPower(_Model):
    """The power of one GPU while it runs an instruction at a clock, fitted over all counter ticks of a window.

    Attributes:
        instruction: The instruction's name; empty for waiting (the blocking power).
        frequency: The clock that was set, in MHz; 0 for the driver's default, and for waiting.
        error: Standard error of `power`, in W.
        seconds: How long the instruction ran in the window.
    """

    instruction: Annotated[str, _cleaned(64)]
    frequency: Megahertz
    power: Watts
    error: Annotated[Watts, Field(ge=0)]
    seconds: Seconds


class Switching(_Model):
    """How the clocks of a rank are switched, and what a change costs there.

    Attributes:
        mode: `device`, `launch` or `sync`: see `PFOFileOptimizer`.
        ahead_s: How long before the device runs an instruction training launches it, in seconds; None: unknown.
        call_s: Duration of a call that sets the clock; None before the first one.
        wait_s: How long a call may wait for calls of other GPUs of the host.
        latency_s: Time from the return of a call until the clock acts, for the slower clocks; None while unknown.
        gpus: Number of GPUs of the host whose clocks are set.
        max_calls_per_s: Most calls per second of all GPUs of the host, if the user limits them.
        latencies_s: That latency for each clock, in MHz, for which it is known; if it is known only roughly, the
            longest likely one; only with measurements.
    """

    mode: Annotated[str, _cleaned(64)]
    ahead_s: Seconds | None = None
    call_s: Seconds | None = None
    wait_s: Seconds | None = None
    latency_s: Seconds | None = None
    gpus: int = Field(default=1, ge=1, le=1024)
    max_calls_per_s: float | None = Field(default=None, gt=0, le=1e9)
    latencies_s: dict[Megahertz, Seconds] = Field(default={}, max_length=1024)


class ProfilingResult(_Model):
    """What one rank measured while one schedule was in force.

    Attributes:
        iter_time: Duration of each iteration in the window, in seconds.
        iter_energy: Energy of the rank's GPU in each of these iterations, in joules.
        time_breakdown: `time_breakdown["forward"][i]` lists the durations of iteration i's forwards, in seconds.
        energy_breakdown: The same in joules, interpolated between the ticks of the energy counter.
        clock_breakdown: Mean clock of each instruction in MHz, as far as it is known when clocks act; 0 for the default
            clock. Clock processes leave out changes for which there is no time. Empty if not known.
        iter_span: Time from each iteration's begin to the end of its last instruction, in seconds; empty if unknown.
        powers: The power of each instruction at each clock, with its standard error.
        switching: How the rank's clocks are switched; None if they are not switched.
        iter_step: The step of each iteration; empty if not known.
    """

    rank: RankNumber
    iter_time: Many[Seconds] = Field(max_length=MAX_ITERATIONS)
    iter_energy: Many[Joules] = Field(max_length=MAX_ITERATIONS)
    time_breakdown: dict[InstructionName, Many[Many[Seconds]]] = Field(default={}, max_length=1024)
    energy_breakdown: dict[InstructionName, Many[Many[Joules]]] = Field(default={}, max_length=1024)
    clock_breakdown: dict[InstructionName, Many[Many[Megahertz]]] = Field(default={}, max_length=1024)
    iter_span: Many[Seconds] = Field(default=[], max_length=MAX_ITERATIONS)
    powers: Many[InstructionPower] = Field(default=[], max_length=1024)
    switching: Switching | None = None
    iter_step: Many[StepNumber] = Field(default=[], max_length=MAX_ITERATIONS)


Together: TypeAlias = "Callable[[Iterable[float]], float] | None"
"""How figures of several GPUs become one figure; None: there is no figure for several GPUs."""
PER_ITERATION: Mapping[str, Together] = {"iter_step": None, "iter_time": max, "iter_energy": sum, "iter_span": max}
PER_INSTRUCTION: Mapping[str, Together] = {"time_breakdown": max, "energy_breakdown": sum, "clock_breakdown": None}
"""The fields of a result with an entry for each iteration, or for each instruction of each iteration."""


class Target(_Model):
    """What a job is planned for: exactly one of the three.

    Attributes:
        slowdown: Longest iteration time, as a multiple of that at max clocks; 1.0: no slowdown.
        deadline: Longest iteration time, in seconds.
        power: Highest average power of all GPUs of the job together, in W.
    """

    slowdown: float | None = Field(default=None, ge=1, le=100)
    deadline: float | None = Field(default=None, gt=0, le=1e6)
    power: float | None = Field(default=None, gt=0, le=1e9)

    @model_validator(mode="after")
    def _one_is_given(self) -> Target:
        if sum(value is not None for value in (self.slowdown, self.deadline, self.power)) != 1:
            raise ValueError("a target is exactly one of slowdown, deadline (s) and power (W)")
        return self

    def __str__(self) -> str:
        if self.power is not None:
            return f"at most {self.power:g} W"
        if self.deadline is not None:
            return f"at most {self.deadline:g} s per iteration"
        return "no slowdown" if self.slowdown == 1 else f"at most {self.slowdown:g} times the time at max clocks"


MOST_SLOWDOWN, MOST_STRAGGLING = 2.0, 4.0
"""The largest slowdowns that users can mean: as a target of a job, and elsewhere. A user who gives 5 means 5 %."""


def implausible(slowdown: float | None, most: float = MOST_SLOWDOWN) -> str:
    """Returns why a slowdown that a user has given is not used; empty if it may be meant.

    Records are not checked by this: a policy may have a reason for more.
    """
    if slowdown is None or not slowdown > most:
        return ""
    text = f"{slowdown:g} is {slowdown:g} times the time at max clocks, and at most {most:g} is taken"
    return text + (f"; for {slowdown:g} % more time, give {1 + slowdown / 100:g}" if slowdown <= 100 else "")


def share_text(share: float, error: float, digits: int) -> str:
    """Returns a share and its error in percent, as people are told them: "8.6 ± 0.3 %"."""
    return f"{100 * share:.{digits}f} ± {100 * error:.{digits}f} %"


class Straggler(_Model):
    """A user's announcement that iterations of a pipeline will take `slowdown` times as long.

    Attributes:
        slowdown: The straggling pipeline's iteration time, divided by that at max clocks.
        pipeline: The straggling pipeline's data-parallel rank; None if it is outside of this job, or not known.
    """

    slowdown: float = Field(ge=1, le=100)
    pipeline: RankNumber | None = None


class PlanInputs(_Model):
    """What a schedule was made for, besides the measurements; written with it, for a coordinator that restarts.

    Attributes:
        target: The target that a user requests; None: the target that the scheduler was started with.
        straggler: The straggler that a user announces.
        slow_pipelines: By data-parallel rank, how many times as long as planned a pipeline takes; below 1: less long.
        remeasure_epoch: Counts how often the plan in force was questioned; a higher number requests new measurements.
        alarm_epoch: `remeasure_epoch` of the latest alarm, by which all pipelines take another time; 0: no alarm.
    """

    target: Target | None = None
    straggler: Straggler | None = None
    slow_pipelines: dict[RankNumber, Ratio] = Field(default={}, max_length=100_000)
    remeasure_epoch: ScheduleNumber = 0
    alarm_epoch: ScheduleNumber = 0
