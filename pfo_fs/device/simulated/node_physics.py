"""What a node does to changes of the clock: how long a call takes, that calls wait for each other, when the clock acts.

The presets are for simulated GPUs. Their constants are not measurements of one machine; they are chosen from what has
been published, and are on the unkind side of it:

- A call of `nvmlDeviceSetGpuLockedClocks` takes 4.1 to 5.2 ms (median), 11 to 13 ms (99th percentile): two independent
  reports, of 8 A800 and of V100. Calls of all GPUs of a node wait for each other: 8 at once took 46 ms (A800).
- Then 1 ms (A800) to 20 ms (V100) pass until the clock is there. It depends on the clock that is requested more than on
  the one before (arXiv:2502.20075: GH200, A100, Quadro; 1 to 500 ms over all pairs). For Hopper 10 to 100 ms are told.
- A request that comes before the last one has acted replaces it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from pfo_fs.errors import ConfigError

_TAIL = 0.03
"""Share of the calls that take long; all others are within a few percent of the median."""
_CORE_SPREAD = 0.05
"""Relative: most calls scatter by this much around the median, beside those that take much longer."""


class NodePhysics(NamedTuple):
    """One kind of node.

    Attributes:
        name: Its name.
        call_s: Median duration of a call that sets a clock, in s.
        slow_call_s: The 99th percentile, in s.
        serial: Whether calls of all GPUs of the node wait for each other.
        least_latency_s: The shortest time from the return of a call until the clock acts, in s.
        most_latency_s: The longest, in s.
    """

    name: str
    call_s: float
    slow_call_s: float
    serial: bool
    least_latency_s: float
    most_latency_s: float

    def latency_s(self, mhz: int) -> float:
        """Returns the time from the return of a call until the clock acts, in s.

        It depends on the target alone, without an order, as in the published measurements.

        Args:
            mhz: The clock that was set; 0 for the default clock.
        """
        place = (mhz // 15 * 7) % 11 / 10
        return self.least_latency_s + (self.most_latency_s - self.least_latency_s) * place**3

    def call_time_s(self, chance: float, other_chance: float) -> float:
        """Returns the duration of one call, in s, from two uniform random numbers between 0 and 1."""
        if not self.call_s:
            return 0.0
        if chance < _TAIL:  # the tail is exponential; its 99th percentile over all calls is `slow_call_s`
            scale_s = (self.slow_call_s - self.call_s) / math.log(_TAIL / 0.01)
            return self.call_s - scale_s * math.log(max(1e-9, 1 - other_chance))
        return self.call_s * (1 + _CORE_SPREAD * (2 * other_chance - 1))


PRESETS: Mapping[str, NodePhysics] = {
    node.name: node
    for node in (
        NodePhysics("none", 0.0, 0.0, False, 0.0, 0.0),
        NodePhysics("kind", 0.0, 0.0, False, 0.010, 0.010),
        NodePhysics("A100 node", 0.0046, 0.012, True, 0.002, 0.020),
        NodePhysics("H100 node", 0.0046, 0.012, True, 0.010, 0.100),
    )
}


def node_physics(name: str) -> NodePhysics:
    """Returns a preset.

    Raises:
        ConfigError: There is no preset of this name.
    """
    node = PRESETS.get(name)
    if node is None:
        raise ConfigError(f"{name!r} is not a kind of node that pfo-fs simulates; choose {', '.join(PRESETS)}")
    return node
