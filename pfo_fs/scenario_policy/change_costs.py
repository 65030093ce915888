"""The costs of clock changes that plans count, from those that were measured."""

from __future__ import annotations

from dataclasses import replace

from pfo_fs.planner import SwitchCosts

_DRIVER_SHARE = 0.5
"""Plans count this share of the time that a driver needs for a change and of that until it acts. With all of them, a
rank would keep each clock until all its GPUs have it; but clock processes make what fits of a shorter run: a GPU's
newest request wins, and a change down is left out where the next one is due. There are never more calls than fit."""
_UNKNOWN_LATENCY_S = 0.02
"""Before any clock's latency is learned: the longest that was published of GPUs before Hopper."""


def full(costs: SwitchCosts) -> SwitchCosts:
    """Returns the costs with a usual latency: the median of all clocks, since plans may use them all."""
    if not costs.late_s:
        return costs  # no clock process requests clocks ahead, or it has not made a call yet
    ordered = sorted(costs.latencies_s.values())
    return replace(costs, latency_s=ordered[len(ordered) // 2] if ordered else _UNKNOWN_LATENCY_S)


def counted(costs: SwitchCosts) -> SwitchCosts:
    """Returns the costs that plans count."""
    usual = full(costs)
    return replace(
        usual,
        driver_time_s=_DRIVER_SHARE * usual.driver_time_s,
        latency_s=_DRIVER_SHARE * usual.latency_s,
        latencies_s={mhz: _DRIVER_SHARE * seconds for mhz, seconds in usual.latencies_s.items()},
    )
