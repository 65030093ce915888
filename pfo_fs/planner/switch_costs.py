"""What a clock change costs on a node, what the changes of one plan cost there, and why the plan has no more.

A rank's clock is set by calls of its host's driver, one per GPU of the rank. Their costs can be measured:

- The driver is busy (`driver_time_s`). It serves one call at a time, for all GPUs of the host, so that eight GPUs take
  eight times as long as one: 46 ms on an eight-GPU node. The GPUs compute meanwhile.
- The clock acts some time after its call has returned (`latency_s`), 1 to 20 ms. The GPU computes meanwhile, at the old
  clock. The clock process knows how long this takes and makes its calls early: a change *up* is complete when its
  instruction begins, a change *down* begins there. So a change costs no time.
- A change never acts exactly on time. Around it the GPUs run at the higher of the two clocks for some time
  (`wrong_clock_s`) in which the lower one would have been enough. That costs energy: the instruction with the lower
  clock does a part of its work as it would at the higher clock. While the rank waits for its neighbours, that is free.

Where clocks cannot follow the device, none of this holds: then each rank keeps to one clock.

Calls that wait for each other set limits. A rank's next change begins only when its last one acts (`shortest_run_s`),
and the calls of all ranks of a host must fit into the iteration (`MOST_BUSY`, `max_calls_per_s`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from pfo_fs.clock_latency import CALL_S
from pfo_fs.errors import ConfigError

MOST_BUSY = 0.8
"""A plan keeps the driver of a host busy for at most this share of the iteration: with random arrivals, calls would
otherwise wait for each other longer than they take themselves."""
_LATE_SHARE = 0.1
"""The clock of a change acts this share of its latency earlier or later than expected."""
_NO_CHANGES = "one clock for each rank"


@dataclass(frozen=True)
class SwitchCosts:
    """What one clock change of one rank costs; by default nothing.

    Attributes:
        driver_time_s: Time in s for which the driver of the rank's host is busy: the time of a call times `calls`.
        latency_s: Time in s from the return of a call until the clock acts.
        latencies_s: The latency in s of clocks for which it is not `latency_s`, by MHz.
        timing_error_s: How far the moment at which a clock acts differs from the intended one, in s.
        calls: Number of driver calls of one change: the rank's GPUs on one host.
        hosts: The ranks of each host; empty: each rank has a host of its own.
        max_calls_per_s: The most calls per second that a host's driver serves.

    Raises:
        ConfigError: A number is out of range, or a rank is named twice.
    """

    driver_time_s: float = 0.0
    latency_s: float = 0.0
    timing_error_s: float = 0.0
    calls: int = 1
    hosts: tuple[tuple[int, ...], ...] = ()
    max_calls_per_s: float = float("inf")
    latencies_s: Mapping[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("driver_time_s", "latency_s", "timing_error_s"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ConfigError(f"{name} of a clock change is {getattr(self, name)}; it must be finite, 0 or more")
        if self.calls < 1:
            raise ConfigError(f"calls of a clock change is {self.calls}; a change needs at least one call")
        if not self.max_calls_per_s > 0:
            raise ConfigError(f"max_calls_per_s is {self.max_calls_per_s}; it must be above zero")
        ranks = [rank for host in self.hosts for rank in host]
        if len(set(ranks)) < len(ranks):
            raise ConfigError(f"hosts are {self.hosts}; a rank is on one host only")

    @property
    def wrong_clock_s(self) -> float:
        """Mean time in s at each change for which a GPU runs at the higher clock without need.

        Of n calls in a row, a call acts up to n - 1 calls before the last one, or after the first: (n - 1) / 2 on
        average.
        """
        return self.timing_error_s + self.driver_time_s * (self.calls - 1) / (2 * self.calls)

    @property
    def none(self) -> bool:
        """Whether changes cost neither time nor energy and are not limited."""
        costs = self.driver_time_s or self.latency_s or self.wrong_clock_s
        return not costs and self.max_calls_per_s == float("inf")

    def shortest_run_s(self, lowered: bool, mhz: int | None = None) -> float:
        """How long a rank must keep a clock before it can change again, in s.

        The calls of a change up end when the clock is needed. The calls of a change down begin then, and take the
        driver's time. The calls of the next change (in the worst case up) begin the driver's time and the latency
        before it acts. The latency of the clock that is kept stands for that of the next one, which is not known here.

        Args:
            mhz: The clock that is kept; None: a clock with the usual latency.
        """
        latency_s = self.latency_s if mhz is None else self.latencies_s.get(mhz, self.latency_s)
        return (2 if lowered else 1) * self.driver_time_s + latency_s

    def most_changes(self, iteration_time_s: float) -> float:
        """How many changes of all ranks of a host fit into an iteration."""
        busy = MOST_BUSY * iteration_time_s / self.driver_time_s if self.driver_time_s else float("inf")
        return min(busy, self.max_calls_per_s * iteration_time_s / self.calls)

    def hosts_of(self, ranks: int) -> list[list[int]]:
        """The ranks of each host; a rank that `hosts` does not name has a host of its own."""
        named = {rank for host in self.hosts for rank in host}
        hosts = [[rank for rank in host if rank < ranks] for host in self.hosts]
        return [host for host in hosts if host] + [[rank] for rank in range(ranks) if rank not in named]


def assumed_costs(latency_s: float, gpus_per_rank: int, hosts: tuple[tuple[int, ...], ...] = ()) -> SwitchCosts:
    """Returns what a change of a rank costs where a clock acts `latency_s` after its call, and a call takes 5 ms."""
    return SwitchCosts(
        driver_time_s=CALL_S * gpus_per_rank,
        latency_s=latency_s,
        timing_error_s=_LATE_SHARE * latency_s,
        calls=gpus_per_rank,
        hosts=hosts,
    )


def even_hosts(ranks: int, per_host: int) -> tuple[tuple[int, ...], ...]:
    """Returns the ranks of each host if `per_host` ranks in a row are on one host."""
    return tuple(tuple(range(first, min(ranks, first + per_host))) for first in range(0, ranks, per_host))


@dataclass(frozen=True)
class SwitchLoad:
    """What the clock changes of one plan cost.

    Attributes:
        changes: Number of changes within an iteration, all ranks together.
        energy_j: Energy that they take in addition, all GPUs together, in J.
        calls_per_s: Driver calls per second on the busiest host, calls between two iterations included.
        overloaded: Hosts whose driver has more calls than fit.
        too_short: Number of runs of one clock that end before the driver can make the next change.
    """

    changes: int
    energy_j: float = 0.0
    calls_per_s: float = 0.0
    overloaded: tuple[int, ...] = ()
    too_short: int = 0

    @property
    def fits(self) -> bool:
        """Whether the drivers can make all changes in time."""
        return not self.overloaded and not self.too_short


def queue_s(costs: SwitchCosts, others: float, busy: float) -> float:
    """Mean time in s that a change waits for the calls of other ranks of its host.

    This is the part that other ranks cause of the mean wait in a queue with random arrivals and equal service times
    (M/D/1, Pollaczek-Khinchine).

    Args:
        others: Share of the time for which other ranks keep the driver busy.
        busy: Share of the time for which all ranks keep it busy.
    """
    return costs.driver_time_s * others / (2 * (1 - min(busy, 0.99)))


def reason(costs: SwitchCosts, load: SwitchLoad, free: SwitchLoad | None, limited: bool) -> str:
    """Returns the number of clock changes of a plan in an iteration, and what keeps the plan from more of them.

    Args:
        free: The clock changes of the plan that ignores what they cost; None if there is no such plan.
        limited: Whether more changes were worth it than the driver of a host can make.
    """
    text = f"{load.changes:,} clock change{'' if load.changes == 1 else 's'}" if load.changes else _NO_CHANGES
    if costs.none:
        return f"{text}: changes cost nothing in this model"
    if limited:
        by_time = MOST_BUSY / costs.driver_time_s if costs.driver_time_s else float("inf")
        if by_time <= costs.max_calls_per_s / costs.calls:
            return f"{text}: more changes would keep the driver of a host busier than {MOST_BUSY:.0%} of the iteration"
        return f"{text}: the driver of a host makes at most {costs.max_calls_per_s:,.4g} calls per second"
    if free is not None and load.changes >= free.changes:
        return f"{text}: no change was dropped for its cost"
    instead = "" if free is None else f" instead of {free.changes:,}"
    early = f"{free.too_short:,} of those come too early for the driver, and " if free and free.too_short else ""
    return f"{text}{instead}: {early}more would take more energy than they save"
