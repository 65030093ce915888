"""Scheduling policies: which clocks the ranks run at, from results in to schedules out.

Policies are pure. The only file that is read here is a plan that the user names.
"""

from pfo_fs.scheduler.base import FrequencyScheduler, Order, Pace, ScheduleGenerator
from pfo_fs.scheduler.parallel3d import make_3d_parallel
from pfo_fs.scheduler.plan_file import format_lowtime_plan, parse_plan, read_plan
from pfo_fs.scheduler.point import Manual, PointSolution, PointSolution3D
from pfo_fs.scheduler.registry import BUILTIN, check_scheduler_args, is_builtin, load_scheduler
from pfo_fs.scheduler.schedule_yaml import (
    OrderUnknown,
    Problem,
    ScheduleDocument,
    ScheduleProblems,
    parse_schedule_yaml,
)
from pfo_fs.scheduler.validate import check_schedules, order_hash
from pfo_fs.scheduler.yaml_format import format_schedule_yaml

__all__ = [
    "BUILTIN",
    "FrequencyScheduler",
    "Manual",
    "Order",
    "OrderUnknown",
    "Pace",
    "PointSolution",
    "PointSolution3D",
    "Problem",
    "ScheduleDocument",
    "ScheduleGenerator",
    "ScheduleProblems",
    "check_scheduler_args",
    "check_schedules",
    "format_lowtime_plan",
    "format_schedule_yaml",
    "is_builtin",
    "load_scheduler",
    "make_3d_parallel",
    "order_hash",
    "parse_plan",
    "parse_schedule_yaml",
    "read_plan",
]
