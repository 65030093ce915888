"""`schedule.yaml`, the format in which users write schedules: parse, resolve for a job, format, report problems."""

from pfo_fs.schedule_yaml.format import format_schedule_yaml
from pfo_fs.schedule_yaml.parse import parse_schedule_yaml
from pfo_fs.schedule_yaml.problems import OrderUnknown, Problem, ScheduleProblems
from pfo_fs.schedule_yaml.resolve import ScheduleDocument

__all__ = [
    "OrderUnknown",
    "Problem",
    "ScheduleDocument",
    "ScheduleProblems",
    "format_schedule_yaml",
    "parse_schedule_yaml",
]
