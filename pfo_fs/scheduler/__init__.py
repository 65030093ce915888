"""Scheduling policies: they decide from results which clocks the ranks run at.

Policies do no input or output. The only file that this package reads is a plan that the user names.
"""

from pfo_fs.scheduler.base import FrequencyScheduler, IterationTime, ScheduleGenerator, ScheduleRequest
from pfo_fs.scheduler.checks import check_schedules
from pfo_fs.scheduler.fixed_plan import FixedSchedules, Manual, PointSolution, PointSolution3D
from pfo_fs.scheduler.parallel3d import make_3d_parallel
from pfo_fs.scheduler.plan_file import format_lowtime_plan, parse_plan, read_plan
from pfo_fs.scheduler.registry import BUILTIN, check_scheduler_args, is_builtin, load_scheduler

__all__ = [
    "BUILTIN",
    "FixedSchedules",
    "FrequencyScheduler",
    "IterationTime",
    "Manual",
    "PointSolution",
    "PointSolution3D",
    "ScheduleGenerator",
    "ScheduleRequest",
    "check_scheduler_args",
    "check_schedules",
    "format_lowtime_plan",
    "is_builtin",
    "load_scheduler",
    "make_3d_parallel",
    "parse_plan",
    "read_plan",
]
