"""Finds a scheduler class by name and checks its arguments before any job needs it."""

import difflib
import inspect
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from pfo_fs.errors import ConfigError
from pfo_fs.scheduler.base import FrequencyScheduler
from pfo_fs.scheduler.fixed_plan import Manual, PointSolution, PointSolution3D

BUILTIN: dict[str, type[FrequencyScheduler] | str] = {
    "Manual": Manual,
    "PointSolution": PointSolution,
    "PointSolution3D": PointSolution3D,
    "InstructionProfiler": "pfo_fs.autotune.instruction_profiler",
    "ParetoScheduler": "pfo_fs.autotune.pareto_scheduler",
}
"""Schedulers with a short name; those that need the planner are given by their module, which is imported on demand."""


def is_builtin(name: str) -> bool:
    """Whether `name` is a built-in scheduler.

    A job's files may name only built-in ones, since importing a module that a shared file names would run its code.
    """
    return name in BUILTIN


def load_scheduler(name: str) -> type[FrequencyScheduler]:
    """Returns the scheduler class called `name`: a built-in one, or `package.module:Class`.

    Raises:
        ConfigError: The class cannot be found; the message names the step that failed, and why.
    """
    if name in BUILTIN:
        known = BUILTIN[name]
        return getattr(import_module(known), name) if isinstance(known, str) else known
    module_name, colon, class_name = name.partition(":")
    if not colon:
        close = difflib.get_close_matches(name, BUILTIN, n=1)
        hint = f"did you mean {close[0]}? " if close else ""
        raise ConfigError(
            f"scheduler {name!r} is unknown; {hint}Built in are {', '.join(BUILTIN)}; "
            "your own is named package.module:Class"
        )
    if not class_name or not all(part.isidentifier() for part in module_name.split(".")):
        raise ConfigError(f"scheduler {name!r}: expected package.module:Class")
    try:
        module = import_module(module_name)
    except (Exception, SystemExit) as error:
        raise ConfigError(
            f"scheduler {name!r}: the module {module_name} cannot be imported: {type(error).__name__}: {error}"
        ) from error
    found = getattr(module, class_name, None)
    if found is None:
        theirs = [
            key
            for key, value in vars(module).items()
            if isinstance(value, type) and issubclass(value, FrequencyScheduler) and value is not FrequencyScheduler
        ]
        hint = f"; its schedulers are {', '.join(sorted(theirs))}" if theirs else "; it has no schedulers"
        raise ConfigError(f"scheduler {name!r}: {module_name} has no attribute {class_name!r}{hint}")
    if not (isinstance(found, type) and issubclass(found, FrequencyScheduler)):
        what = "a class, but" if isinstance(found, type) else f"a {type(found).__name__},"
        raise ConfigError(f"scheduler {name!r}: {class_name} is {what} not a subclass of pfo_fs.FrequencyScheduler")
    if inspect.isabstract(found):
        missing = ", ".join(sorted(found.__abstractmethods__))
        raise ConfigError(f"scheduler {name!r}: {class_name} does not define {missing}")
    return found


def check_scheduler_args(cls: type[FrequencyScheduler], args: Mapping[str, Any]) -> None:
    """Checks that `cls(job_info, rank_infos, pfo_settings, **args)` is a possible call.

    Raises:
        ConfigError: The call is not possible; the message names missing, unexpected and known arguments.
        PlanError: The scheduler itself refuses an argument, for example because a file is missing.
    """
    signature = inspect.signature(cls)
    try:
        signature.bind(None, None, None, **args)
    except TypeError as error:
        reason = str(error)
    else:
        cls.check_args(**args)
        return
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    own = list(signature.parameters.values())
    while own and own[0].kind in by_name[:1] and len(signature.parameters) - len(own) < 3:
        del own[0]  # the job, its ranks and the settings
    known = [p.name for p in own if p.kind in by_name]
    parts = [f"missing {p.name}" for p in own if p.name in known and p.default is p.empty and p.name not in args]
    for name in args if inspect.Parameter.VAR_KEYWORD not in [p.kind for p in own] else ():
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            parts.append(f"unexpected {name}" + (f" (did you mean {close[0]}?)" if close else ""))
    raise ConfigError(
        f"scheduler_args of {cls.__name__}: {'; '.join(parts) or reason}. Known: {', '.join(known) or 'none'}"
    )
