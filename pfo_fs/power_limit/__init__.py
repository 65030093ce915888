"""One power limit for all GPUs of a job without a pipeline: measured while the job trains, chosen, and set.

Names load on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pfo_fs.power_limit.measurements import PowerLimitMeasurement, parse_profile, profile_text
    from pfo_fs.power_limit.monitor import EnergyMonitor, Measurement, Monitor
    from pfo_fs.power_limit.optimizer import GlobalPowerLimitOptimizer
    from pfo_fs.power_limit.selectors import Energy, MaxSlowdownConstraint, OptimumSelector, Time, ZeusCost
    from pfo_fs.power_limit.states import Done, Off, Profiling, Ready, Warmup

_HOME = {
    "Done": "states",
    "Energy": "selectors",
    "EnergyMonitor": "monitor",
    "GlobalPowerLimitOptimizer": "optimizer",
    "MaxSlowdownConstraint": "selectors",
    "Measurement": "monitor",
    "Monitor": "monitor",
    "Off": "states",
    "OptimumSelector": "selectors",
    "PowerLimitMeasurement": "measurements",
    "Profiling": "states",
    "Ready": "states",
    "Time": "selectors",
    "Warmup": "states",
    "ZeusCost": "selectors",
    "parse_profile": "measurements",
    "profile_text": "measurements",
}

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


if not TYPE_CHECKING:  # so that mypy knows the names above only

    def __getattr__(name: str) -> Any:
        if name in _HOME:
            from importlib import import_module

            return getattr(import_module(f"pfo_fs.power_limit.{_HOME[name]}"), name)
        raise AttributeError(f"module 'pfo_fs.power_limit' has no attribute {name!r}")
