"""Which options of the power-limit optimizer make no sense, and what to give in their place."""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any

from pfo_fs.errors import ConfigError, InvalidArgument
from pfo_fs.power_limit.measurements import KNOBS

_LEAST = {"wait_steps": 0, "warmup_steps": 0, "profile_steps": 1, "pl_step": 1, "clock_step": 1}


def check_numbers(given: Mapping[str, Any]) -> None:
    """Checks the arguments for which Zeus's class raises a ValueError, by name.

    Raises:
        InvalidArgument: A number is too low.
    """
    for name, least in _LEAST.items():
        value = given.get(name, least)
        if isinstance(value, Real) and not float(value) >= least:
            raise InvalidArgument(f"{name} is {value}; give at least {least}")


def check_others(given: Mapping[str, Any]) -> None:
    """Checks the other arguments, by name; what is not given is valid.

    Raises:
        ConfigError: An argument is not valid.
    """
    for name in _LEAST:
        if not isinstance(given.get(name, 1), Integral):
            raise ConfigError(f"{name} is {given[name]!r}; give a whole number")
    if given["knob"] not in KNOBS:
        raise ConfigError(f"knob is {given['knob']!r}; it can be 'power_limit' or 'clock'")
    drift, selector = given["reprofile_drift"], given["optimum_selector"]
    if drift is not None and not (isinstance(drift, Real) and 0 < float(drift) < math.inf):
        raise ConfigError(f"reprofile_drift is {drift!r}; 0.2 is for steps that take 20 % more or less time")
    if selector is not None and (isinstance(selector, type) or not hasattr(selector, "select")):
        raise ConfigError(f"optimum_selector is {selector!r}; give a selector, such as Energy()")


def too_short(epoch_steps: int, warmup_steps: int, window_steps: int) -> str:
    """Returns what to do if no level can be measured within an epoch of this many steps; empty if one can."""
    needed = 1 + warmup_steps + window_steps
    if epoch_steps >= needed:
        return ""
    return (
        f"an epoch of {epoch_steps} steps ends before a level is measured, which takes {needed} steps of one epoch (1 "
        f"+ {warmup_steps} to warm up + {window_steps} to measure), so nothing is measured. Give fewer "
        "warmup_steps and profile_steps, or call pause_measurement() instead of on_epoch_end()"
    )
