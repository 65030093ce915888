"""One power limit for all GPUs of a job without a pipeline: measured while the job trains, chosen, and set."""

from pfo_fs.power_limit.measurements import PowerLimitMeasurement, parse_profile, profile_text
from pfo_fs.power_limit.monitor import EnergyMonitor, Measurement, Monitor
from pfo_fs.power_limit.optimizer import GlobalPowerLimitOptimizer
from pfo_fs.power_limit.selectors import Energy, MaxSlowdownConstraint, OptimumSelector, Time, ZeusCost
from pfo_fs.power_limit.states import Done, Off, Profiling, Ready, Warmup

__all__ = [
    "Done",
    "Energy",
    "EnergyMonitor",
    "GlobalPowerLimitOptimizer",
    "MaxSlowdownConstraint",
    "Measurement",
    "Monitor",
    "Off",
    "OptimumSelector",
    "PowerLimitMeasurement",
    "Profiling",
    "Ready",
    "Time",
    "Warmup",
    "ZeusCost",
    "parse_profile",
    "profile_text",
]
