"""The heuristics of planner, device and autotune that `ablate.py` switches off, one at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from typing import Any, NamedTuple

from pfo_fs.autotune.measured_switching import UNKNOWN_COSTS, measured_switching
from pfo_fs.planner import SwitchCosts

PARTS = ("planner", "device", "loop")


class Heuristic(NamedTuple):
    """A heuristic.

    Attributes:
        name: Its name in the table.
        room: The package that it belongs to.
        purpose: What it is for.
        off: What takes the place of what while it is off, by dotted name: `module:attribute` or
            `module:Class.attribute`, without `pfo_fs.`.
        part: The part of the benchmark in which it has a row.
    """

    name: str
    room: str
    purpose: str
    off: Mapping[str, Any]
    part: str


@contextmanager
def switched_off(heuristic: Heuristic | None) -> Iterator[None]:
    """Switches a heuristic off; None: all are on."""
    before = []
    try:
        for name, neutral in (heuristic.off if heuristic else {}).items():
            holder, attribute = _found(name)
            before.append((holder, attribute, vars(holder)[attribute]))
            setattr(holder, attribute, neutral)
        yield
    finally:
        for holder, attribute, value in before:
            setattr(holder, attribute, value)


def _found(name: str) -> tuple[Any, str]:
    module, _, path = name.partition(":")
    *classes, attribute = path.split(".")
    holder: Any = import_module(f"pfo_fs.{module}")
    for each in classes:
        holder = getattr(holder, each)
    if attribute not in vars(holder):
        raise LookupError(f"{name}: there is no such name any more; the heuristic has gone or has another name")
    return holder, attribute


# ---- neutral values


def _always(value: Any) -> Callable[..., Any]:
    return lambda *_, **__: value


def _given(position: int) -> Callable[..., Any]:
    """Returns one of the arguments as it is; the first one of a method is the object."""
    return lambda *args, **__: args[position]


def _no_effect(self: Any, left: Any, _weights: Any) -> None:
    self.values, self.real = 0.0 * left, 1e-12 + 0.0 * left[0]


def _all_learned(_results: Any, mhz: Any) -> Any:
    return mhz > 0


def _free_changes(results: Any, infos: Any) -> SwitchCosts | None:
    return None if measured_switching(results, infos) is None else SwitchCosts()


def _no_hosts(results: Any, infos: Any) -> SwitchCosts | None:
    found = measured_switching(results, infos)
    if found is None:
        return None
    return replace(found, max_calls_per_s=float("inf"), hosts=())


_SWITCHING = "planner.switching_planner"

_PLANNER_PLANS = (
    ("annealing", "rounds at falling prices of time", "planner.rounding:FALLING_SHARES", ()),
    (
        "plans rounded with changes",
        "ranks take clocks at falling prices of time",
        f"{_SWITCHING}:SwitchingPlanner._rounded",
        _always([]),
    ),
    ("descent", "the best plans with changes are improved by moves", f"{_SWITCHING}:_IMPROVED", 0),
    (
        "host limits",
        "a price of changes where a host's driver is too slow",
        f"{_SWITCHING}:SwitchingPlanner._host_price_j",
        _always(0.0),
    ),
)
_PLANNER_LOOP = (
    (
        "everything that counts late clocks",
        "acts_late_s, learned by the loop",
        "autotune.beliefs:late_switching",
        _always(UNKNOWN_COSTS),
    ),
    (
        "everything that counts driver and latency",
        "costs of changes on nodes",
        "autotune.beliefs:measured_switching",
        _free_changes,
    ),
    (
        "host limits in the loop",
        "calls per host, and which stages share one",
        "autotune.beliefs:measured_switching",
        _no_hosts,
    ),
    (
        "delays are calibrated",
        "delays between stages from measured iterations",
        "autotune.beliefs:Beliefs.calibration",
        _always(None),
    ),
    (
        "unknown changes cost 1 ms",
        "a price of changes before any is known",
        {
            "autotune.beliefs:late_switching": lambda s: SwitchCosts(acts_late_s=s if s >= 0.001 else 0.0),
            "autotune.measured_switching:UNKNOWN_COSTS": SwitchCosts(),
        },
        None,
    ),
)
_DEVICE_CLOCKS = (
    (
        "all latencies",
        "when each clock acts is learned",
        "device.clocks.latency_model:LatencyModel._add",
        _always(None),
    ),
    (
        "clocks like others",
        "the prior of a clock is the distribution of the others",
        "device.clocks.latency_model:_LIKE_CLOCKS",
        1000000.0,
    ),
    (
        "clock stays between steps",
        "no default clock in short pauses",
        "device.clocks.followed_plan:FollowedPlan.holds_ns",
        _always(0),
    ),
    (
        "budget of calls",
        "no change down without room for one up",
        "device.clocks.driver_calls:DriverCalls.allows_down",
        _always(True),
    ),
    ("odd times are doubted", "one stall is not a new duration", "device.clocks.followed_plan:_ODD", 1000000000.0),
)
_DEVICE_LOOP = (
    ("roughly known", "a rough latency is reported", "device.clocks.latency_model:_KNOWN", 0.0),
    ("enough ticks", "windows wait for ticks of the energy counter", "device.metering.window_ticks:_ENOUGH_TICKS", 2),
)
_AUTOTUNE_LOOP = (
    ("plateaus", "equally fast clocks under a power limit", "autotune.clock_curves:_plateaus", _always([])),
    ("common curves", "instructions share what is known of curves", "autotune.clock_curves:_OWN_SHARES", (1.0,)),
    ("trials of clocks", "plans in force to measure clocks", "autotune.decision:_hopeful_plan", _always(None)),
    (
        "drift of powers",
        "warm GPUs draw more",
        "autotune.beliefs:power_drift",
        _always(1.0),
    ),
    (
        "one clock per rank first",
        "short iterations: one clock per rank until none of these plans is worth a window",
        "autotune.model:JobModel.one_stretch",
        property(_always(False)),
    ),
    ("smaller hopes", "a trial may hope for less", "autotune.decision:_HOPES", (1.0,)),
    ("small steps", "a trial may go a part of the way only", "autotune.decision:PARTS", (1.0,)),
    ("trials go on", "a trial that tells too little is measured again", "autotune.decision:_MOST_WINDOWS", 1),
    ("other plans tell", "what was measured of a plan tells of others", "autotune.plan_judge:_MOST_TRIALS", 1),
    ("level of max clocks", "its error counts", "autotune.beliefs:Beliefs.level_error", _always(0.0)),
    (
        "first low clocks",
        "low clocks are measured where there is slack before the first plan",
        "autotune.pareto_scheduler:probe_plan",
        lambda model, _beliefs: model.max_clocks,
    ),
    ("effects", "what runs of an iteration or place share", "autotune.load_rows:Effect.update", _no_effect),
    ("loads", "instructions of a micro-batch vary together", "autotune.loads:_FIRST_SHARE", 0.0),
    ("recombined iterations", "plans are judged by recombined iterations too", "autotune.model:_MOST_VALUES", 0),
    (
        "other times are forgotten",
        "windows of other times go",
        "autotune.beliefs:Beliefs._forget_other_times",
        _always(None),
    ),
    (
        "changed kinds are forgotten",
        "points go when one has changed",
        "autotune.beliefs:Beliefs._forget_if_changed",
        _always(None),
    ),
    ("unlearned clocks", "runs at clocks that may act late do not count", "autotune.windows:_learned", _all_learned),
    ("own clocks", "pipelines whose ranks differ for good", "autotune.model:_OWN_GROUP", 1e9),
    ("rare stalls", "the noise has heavy tails", "autotune.loads:_FREEDOM", 1e9),
    (
        "mixed powers",
        "powers where only the mean of several clocks is known",
        "autotune.samples:Samples._add_mixed_powers",
        _always(None),
    ),
)


def _rows(room: str, part: str, rows: Iterable[tuple[str, str, Any, Any]]) -> Iterator[Heuristic]:
    for name, purpose, what, neutral in rows:
        yield Heuristic(name, room, purpose, what if isinstance(what, dict) else {what: neutral}, part)


HEURISTICS = (
    *_rows("planner", "planner", _PLANNER_PLANS),
    *_rows("planner", "loop", _PLANNER_LOOP),
    *_rows("device", "device", _DEVICE_CLOCKS),
    *_rows("device", "loop", _DEVICE_LOOP),
    *_rows("autotune", "loop", _AUTOTUNE_LOOP),
)
