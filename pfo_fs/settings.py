"""Settings of the scheduling side: environment variables `PFO_FS_*`, overridden by arguments."""

import logging
import os
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict, SettingsError

from pfo_fs.errors import ConfigError, first_problem

PREFIX = "PFO_FS_"


class PFOSettings(BaseSettings):
    """The settings of a daemon, or of rank 0 where no daemon runs.

    Attributes:
        scheduler: Name of a built-in scheduler (`ParetoScheduler`, `InstructionProfiler`, `Manual`, `PointSolution`,
            `PointSolution3D`), or `package.module:Class` for your own. Its arguments are checked when the daemon or
            the optimizer starts.
        scheduler_args: Extra arguments of the scheduler's constructor; as an environment variable, a JSON object.
        log_level: `debug`, `info`, `warning` or `error`.
        dump_data: Whether schedules and results are also written in Zeus's dump format.
        dump_dir: The folder of these dumps; each job gets a folder in it.
        max_job_idle_time: Seconds after which a job is ended and its folder archived if no process of it has written
            anything.
        poll_interval: Seconds between two polls of a job; None: 0.25 s on a local file system, else 1 s (hosts: 2 s).
        watch: `auto` uses file-system events as a hint on local file systems; `poll` never; `events` always.
        profile_steps: Iterations measured for each schedule.
        profile_seconds: Short iterations are measured for this many seconds, in at most 8 times as many iterations:
            they scatter, energy counters tick seldom, and clocks that are new to a GPU are still learned.
        lease_timeout: A standby daemon takes over after this many seconds without a heartbeat of the leader.
        straggler_timeout: Ranks give up the pace of a straggler after this many seconds without a heartbeat of the
            coordinator, plus its longest planning time (300 s at most) and two polls.
    """

    model_config = SettingsConfigDict(env_prefix=PREFIX, extra="ignore", validate_default=True, env_ignore_empty=True)

    scheduler: str = "ParetoScheduler"
    scheduler_args: dict[str, Any] = {}
    log_level: str = "INFO"
    dump_data: bool = False
    dump_dir: Path = Path("dump")
    max_job_idle_time: float = Field(default=7 * 24 * 3600.0, gt=0)
    poll_interval: float | None = Field(default=None, gt=0, le=60)
    watch: Literal["auto", "poll", "events"] = "auto"
    profile_steps: int = Field(default=5, ge=1, le=1000)
    profile_seconds: float = Field(default=4.0, ge=0, le=600)
    lease_timeout: float = Field(default=3.0, gt=0.1, le=600)
    straggler_timeout: float = Field(default=60.0, ge=2, le=3600)

    @field_validator("log_level")
    @classmethod
    def _log_level_exists(cls, value: str) -> str:
        if not isinstance(logging.getLevelName(value.upper()), int):
            raise ValueError(f"{value!r} is not a log level; use debug, info, warning or error")
        return value.upper()


_OF_DAEMON = ("log_level", "max_job_idle_time", "watch", "lease_timeout")
"""Settings that only a daemon uses: in a job, their variables are not read, so that a wrong one does no harm."""


def load_settings(*, of_job: bool = False, **overrides: Any) -> PFOSettings:
    """Returns the settings from the environment, replaced by those `overrides` that are not None.

    A variable that is empty counts as not set.

    Args:
        of_job: Whether the settings are for a job, not for a daemon.

    Raises:
        ConfigError: A value is not valid; the message names the variable, or the argument of that name.
    """
    given = {key: value for key, value in overrides.items() if value is not None}
    defaults = {name: PFOSettings.model_fields[name].default for name in _OF_DAEMON if of_job}
    try:
        return PFOSettings(**{**defaults, **given})
    except ValidationError as error:
        where, wrong = first_problem(error)
        name = where.partition(".")[0]
        raise ConfigError(f"{name if name in given else f'{PREFIX}{name.upper()}'} {wrong}") from None
    except SettingsError as error:  # the only setting that pydantic reads as JSON
        got = os.environ.get(f"{PREFIX}SCHEDULER_ARGS", "")
        text = f'{PREFIX}SCHEDULER_ARGS must be a JSON object such as {{"slowdown": 1.05}}, not {got!r:.200}'
        raise ConfigError(f"{text} ({error.__cause__})") from None
