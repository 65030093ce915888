"""The arguments that the user gave `PFOFileOptimizer`, checked."""

import os
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Literal, get_args

from pfo_fs.device.gpu.spec import NAMES
from pfo_fs.errors import ConfigError, plain_text
from pfo_fs.settings import PFOSettings, load_settings
from pfo_fs.training.step_parts import MODES, Switching

_MAX_TEXT_CHARS = 2_000_000
Coordination = Literal["auto", "daemon", "local"]


@dataclass(frozen=True)
class JobRequest:
    """What the user requests of `PFOFileOptimizer`; see its arguments.

    Raises:
        ConfigError: A value is not among the allowed ones.
    """

    shared_dir: str
    settings: PFOSettings
    own_scheduler: bool
    coordination: Coordination
    job_metadata: str | None
    device: int | None
    wait_for_schedule_s: float
    switching: Switching = "auto"
    clock_backend: str = "auto"
    max_clock_calls_per_s: float | None = None
    broadcasts: bool = True
    """Whether schedules are broadcast if no daemon runs: a collective call, so all ranks must run the same steps."""

    def __post_init__(self) -> None:
        for name, named, choices in (
            ("coordination", "coordination", get_args(Coordination)),
            ("switching", "switching", MODES),
            ("clock_backend", "clock_backend (PFO_FS_CLOCK_BACKEND)", NAMES),
        ):
            if (given := getattr(self, name)) not in choices:
                raise ConfigError(f"{named} is {given!r}; it can be {', '.join(choices)}")
        if (most := self.max_clock_calls_per_s) is not None and not (isinstance(most, Real) and most > 0):
            raise ConfigError(f"max_clock_calls_per_s is {most!r}; it must be a number above zero")

    @property
    def given_settings(self) -> dict[str, object]:
        """The settings that were set here, for another process; `dump_dir` always, as an absolute path."""
        given = self.settings.model_dump(mode="json", exclude_unset=True)
        return {**given, "dump_dir": os.path.abspath(self.settings.dump_dir)}


def in_our_order(arguments: tuple[object, ...], options: dict[str, object]) -> tuple[object, ...]:
    """Returns positional arguments with the shared directory first; a call as for Zeus's optimizer lacks it."""
    if arguments and isinstance(arguments[0], Integral):  # the rank: a call as Zeus's class takes it
        return options.pop("shared_dir", None), *arguments
    return arguments


def checked_device(device: int | None, device_id: int | None) -> int | None:
    """Returns the device, which Zeus's scripts call `device_id`.

    Raises:
        ConfigError: Both are given, and differ.
    """
    if device is not None and device_id not in (None, device):
        raise ConfigError(f"device is {device!r}, but device_id is {device_id!r}; give one of them")
    return device_id if device is None else device


def checked_directory(shared_dir: str | bytes | os.PathLike[str] | None, server_url: object = None) -> str:
    """Returns the absolute path of the shared directory.

    Raises:
        ConfigError: It is no path.
    """
    if shared_dir is None and isinstance(server_url, str):
        if "://" in server_url:
            raise ConfigError(f"there is no server, so {server_url} is not used; give shared_dir, a directory")
        shared_dir = server_url
    if (
        not isinstance(shared_dir, str | bytes | os.PathLike)
        or "\0" in os.fsdecode(shared_dir)
        or not os.fsdecode(shared_dir).strip()
    ):
        raise ConfigError(f"shared_dir is {shared_dir!r}; give the path of a directory")
    return os.path.abspath(os.path.expanduser(os.fsdecode(shared_dir)))


def text_of(given: object) -> str | None:
    """Returns a text that the user gave, in a form that a file can hold: bytes that are not UTF-8 become U+FFFD."""
    if given is None:
        return None
    return plain_text(given.decode("utf-8", "replace") if isinstance(given, bytes) else str(given), _MAX_TEXT_CHARS)


def _with_whole_paths(scheduler_args: dict[str, object]) -> dict[str, object]:
    """Returns the arguments with absolute paths for files that exist here.

    The scheduler runs in a process with another working directory. A file that does not exist here may be in the shared
    directory, in which a daemon searches.
    """
    whole = dict(scheduler_args)
    for name, value in scheduler_args.items():
        if isinstance(value, os.PathLike) or (isinstance(value, str) and "path" in name.lower()):
            path = os.fsdecode(value)
            whole[name] = os.path.abspath(path) if os.path.exists(path) else path
    return whole


def checked_settings(
    coordination: str, scheduler: str | None, scheduler_args: dict[str, object] | None, profile_steps: int | None
) -> PFOSettings:
    """Returns the settings of a job.

    Raises:
        ConfigError: An argument is not valid.
    """
    settings = load_settings(
        of_job=True, scheduler=scheduler, scheduler_args=scheduler_args, profile_steps=profile_steps
    )
    if settings.scheduler_args:
        settings.scheduler_args = _with_whole_paths(settings.scheduler_args)
    if scheduler is not None or scheduler_args is not None or coordination == "local":
        from pfo_fs.scheduler import check_scheduler_args, load_scheduler

        check_scheduler_args(load_scheduler(settings.scheduler), settings.scheduler_args)
    return settings
