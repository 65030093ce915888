"""pfo-fs: pipeline frequency optimization through a shared directory, with no server.

The public names are imported on first use, so that `import pfo_fs` stays light in a process that trains:
the helper processes start from this package too and must not pay for what they do not use.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pfo_fs import loads as loads
    from pfo_fs.errors import PfoError as PfoError
    from pfo_fs.integrations.any_framework import attach as attach
    from pfo_fs.integrations.huggingface import HFGlobalPowerLimitOptimizer as HFGlobalPowerLimitOptimizer
    from pfo_fs.models import FrequencySchedule as FrequencySchedule
    from pfo_fs.models import JobInfo as JobInfo
    from pfo_fs.models import ProfilingResult as ProfilingResult
    from pfo_fs.models import RankInfo as RankInfo
    from pfo_fs.planner.profile_csv import InstructionProfilingResult as InstructionProfilingResult
    from pfo_fs.planner.profile_csv import OfflineProfilingResult as OfflineProfilingResult
    from pfo_fs.power_limit import GlobalPowerLimitOptimizer as GlobalPowerLimitOptimizer
    from pfo_fs.scheduler import FrequencyScheduler as FrequencyScheduler
    from pfo_fs.scheduler import PointSolution as PointSolution
    from pfo_fs.scheduler import PointSolution3D as PointSolution3D
    from pfo_fs.scheduler import make_3d_parallel as make_3d_parallel
    from pfo_fs.settings import PFOSettings as PFOSettings
    from pfo_fs.training.load_clocks import LoadClocks as LoadClocks
    from pfo_fs.training.optimizer import PFOFileOptimizer as PFOFileOptimizer

if "PFO_FS_STARTED_PROCESS" in os.environ and sys.argv[:1] != ["-c"]:
    # This should be a process beside training, but the executable runs the training program a second time.
    raise SystemExit(f"pfo-fs: {sys.executable} is not a Python interpreter; it started the program a second time")

__version__ = "0.1.0"

_HOME = {
    "pfo_fs.errors": ("PfoError",),
    "pfo_fs.integrations.any_framework": ("attach",),
    "pfo_fs.integrations.huggingface": ("HFGlobalPowerLimitOptimizer",),
    "pfo_fs.models": ("FrequencySchedule", "JobInfo", "ProfilingResult", "RankInfo"),
    "pfo_fs.planner.profile_csv": ("InstructionProfilingResult", "OfflineProfilingResult"),
    "pfo_fs.power_limit": ("GlobalPowerLimitOptimizer",),
    "pfo_fs.scheduler": ("FrequencyScheduler", "PointSolution", "PointSolution3D", "make_3d_parallel"),
    "pfo_fs.settings": ("PFOSettings",),
    "pfo_fs.training.load_clocks": ("LoadClocks",),
    "pfo_fs.training.optimizer": ("PFOFileOptimizer",),
}

__all__ = ["__version__", "loads", *(name for names in _HOME.values() for name in names)]


if not TYPE_CHECKING:  # so that mypy knows the names above only

    def __getattr__(name: str) -> Any:
        from importlib import import_module

        if name == "loads":
            return import_module("pfo_fs.loads")
        for module, names in _HOME.items():
            if name in names:
                return getattr(import_module(module), name)
        others = "pfo_fs.power_limit and pfo_fs.integrations (.torch_loop, .huggingface, .lightning, .megatron)"
        raise AttributeError(f"module 'pfo_fs' has no attribute {name!r}; other names are in {others}")


def __dir__() -> list[str]:
    return sorted(__all__)
