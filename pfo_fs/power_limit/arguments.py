"""Checks the arguments of the power-limit optimizer."""

from __future__ import annotations

import math

from pfo_fs.errors import ConfigError
from pfo_fs.power_limit.measurements import KNOBS, Knob


def check_arguments(knob: Knob, reprofile_drift: float | None, **steps: tuple[int, int]) -> None:
    """Raises ConfigError for an argument that cannot be.

    Args:
        knob: What is set.
        reprofile_drift: The share by which a step may take longer before all is measured again; None for any.
        steps: The value of each whole number and the least that it can be, by name.
    """
    for name, (value, least) in steps.items():
        if value < least:
            raise ConfigError(f"{name} is {value}; give at least {least}")
    if knob not in KNOBS:
        raise ConfigError(f"knob is {knob!r}; it can be 'power_limit' or 'clock'")
    if reprofile_drift is not None and not 0 < reprofile_drift < math.inf:
        raise ConfigError(f"reprofile_drift is {reprofile_drift}; 0.2 is for steps that take 20 % more or less time")
