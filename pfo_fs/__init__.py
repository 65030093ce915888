"""pfo-fs: pipeline frequency optimization through a shared directory, with no server.

The public names are imported on first use, so that `import pfo_fs` stays light in a process that trains:
the helper processes start from this package too and must not pay for what they do not use.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pfo_fs import loads
    from pfo_fs.errors import PfoError
    from pfo_fs.integrations.any_framework import attach
    from pfo_fs.integrations.huggingface import HFGlobalPowerLimitOptimizer
    from pfo_fs.models import (
        FrequencySchedule,
        JobInfo,
        ProfilingResult,
        RankInfo,
    )
    from pfo_fs.planner.zeus_profile import InstructionProfilingResult, OfflineProfilingResult
    from pfo_fs.power_limit import GlobalPowerLimitOptimizer
    from pfo_fs.scheduler import FrequencyScheduler, PointSolution, PointSolution3D, make_3d_parallel
    from pfo_fs.settings import PFOSettings
    from pfo_fs.training.load_clocks import LoadClocks
    from pfo_fs.training.optimizer import PFOFileOptimizer

if "PFO_FS_STARTED_PROCESS" in os.environ and sys.argv[:1] != ["-c"]:
    # A process beside training was to be started, but the executable runs the program itself: training once more.
    raise SystemExit(f"pfo-fs: {sys.executable} is not a Python interpreter; it started the program a second time")

__version__ = "0.1.0"

_HOME = {
    "PfoError": "pfo_fs.errors",
    "attach": "pfo_fs.integrations.any_framework",
    "FrequencySchedule": "pfo_fs.models",
    "GlobalPowerLimitOptimizer": "pfo_fs.power_limit",
    "LoadClocks": "pfo_fs.training.load_clocks",
    "HFGlobalPowerLimitOptimizer": "pfo_fs.integrations.huggingface",
    "InstructionProfilingResult": "pfo_fs.planner.zeus_profile",
    "JobInfo": "pfo_fs.models",
    "OfflineProfilingResult": "pfo_fs.planner.zeus_profile",
    "ProfilingResult": "pfo_fs.models",
    "RankInfo": "pfo_fs.models",
    "PFOFileOptimizer": "pfo_fs.training.optimizer",
    "FrequencyScheduler": "pfo_fs.scheduler",
    "PointSolution": "pfo_fs.scheduler",
    "PointSolution3D": "pfo_fs.scheduler",
    "make_3d_parallel": "pfo_fs.scheduler",
    "PFOSettings": "pfo_fs.settings",
}

__all__ = [
    "FrequencySchedule",
    "FrequencyScheduler",
    "GlobalPowerLimitOptimizer",
    "HFGlobalPowerLimitOptimizer",
    "InstructionProfilingResult",
    "JobInfo",
    "LoadClocks",
    "OfflineProfilingResult",
    "PFOFileOptimizer",
    "PFOSettings",
    "PfoError",
    "PointSolution",
    "PointSolution3D",
    "ProfilingResult",
    "RankInfo",
    "__version__",
    "attach",
    "loads",
    "make_3d_parallel",
]


if not TYPE_CHECKING:  # so that mypy knows the names above only

    def __getattr__(name: str) -> Any:
        if name == "loads":
            from importlib import import_module

            return import_module("pfo_fs.loads")
        if name in _HOME:
            from importlib import import_module

            return getattr(import_module(_HOME[name]), name)
        raise AttributeError(f"module 'pfo_fs' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
