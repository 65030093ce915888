"""No clocks are set, because the user asked for that: training is measured only."""

from __future__ import annotations

from pfo_fs.device.clock_backends.interface import MeasuresOnly


def measures_only() -> MeasuresOnly:
    """Returns the way that sets nothing."""
    return MeasuresOnly("clock_backend is 'none': clocks and power limits are left alone, and training is measured")
