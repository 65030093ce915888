"""What every policy keeps to, whatever the ranks measure: all built-in ones, the 3D adapter, and the documented one."""

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from scheduler_jobs import make_job, one_f_one_b, order_of

import pfo_fs
from pfo_fs.models import FrequencySchedule, InstructionPower, PlanInputs, ProfilingResult, Straggler, Switching, Target
from pfo_fs.planner import make_pipeline
from pfo_fs.planner.longest_paths import LongestPaths
from pfo_fs.scheduler import (
    BUILTIN,
    FrequencyScheduler,
    IterationTime,
    ScheduleRequest,
    check_schedules,
    load_scheduler,
    make_3d_parallel,
)
from pfo_fs.settings import PFOSettings
from pfo_fs.turns import follows, half_of

STAGES, PIPELINES, MICROBATCHES, ITERATIONS = 2, 2, 3, 3
CLOCKS = list(range(600, 1411, 90))
JOB, INFOS = make_job(STAGES, PIPELINES, clocks=CLOCKS)
NAMES = {info.rank: one_f_one_b(info.pp_rank, STAGES, MICROBATCHES) for info in INFOS}
ORDERS = {rank: order_of(names) for rank, names in NAMES.items()}


def documented_policy() -> type[FrequencyScheduler]:
    """`Descending`, as docs/planning.md has it."""
    page = (Path(__file__).parents[2] / "docs" / "planning.md").read_text()
    source = next(block for block in page.split("```python\n")[1:] if "class Descending" in block).split("```")[0]
    names: dict[str, Any] = {"pfo_fs": pfo_fs}
    exec(source.replace("1305", "1320").replace("1200", "1230"), names)  # clocks that these GPUs offer
    found = names["Descending"]
    assert isinstance(found, type)
    assert issubclass(found, FrequencyScheduler)
    return found


MEASURING = {"ParetoScheduler", "InstructionProfiler"}
"""They take minutes here. The 3D adapter treats all policies alike, and is tried with the others."""


class Case(NamedTuple):
    """A policy with its arguments."""

    cls: type[FrequencyScheduler]
    args: dict[str, Any]
    yields_lists: bool

    def make(self) -> FrequencyScheduler:
        scheduler = self.cls(JOB, list(reversed(INFOS)), PFOSettings(), **self.args)
        scheduler.orders = ORDERS
        return scheduler


def yaml_plan(folder: Path, title: str, count: int) -> str:
    lines = [f"{title}:"]
    for number in range(count):
        stage = number if title == "stages" else INFOS[number].pp_rank
        lines.append(f"  {number}: [{', '.join(f'{name} 1230' for name in one_f_one_b(stage, STAGES, MICROBATCHES))}]")
    path = folder / f"{title}.yaml"
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def case_of(policy: str, folder: Path) -> Case:
    name = policy.removeprefix("3D of ")
    args: dict[str, dict[str, Any]] = {
        "PointSolution": {"solution_path": yaml_plan(folder, "ranks", JOB.world_size)},
        "PointSolution3D": {"solution_path": yaml_plan(folder, "stages", STAGES)},
        "InstructionProfiler": {"max_windows": 24},
        "Descending": {"num_microbatches": MICROBATCHES},
    }
    cls = documented_policy() if name == "Descending" else load_scheduler(name)
    if name != policy:
        cls, name = make_3d_parallel(cls), "PointSolution3D" if name == "PointSolution" else name
    return Case(cls, args.get(name, {}), name not in MEASURING)


POLICIES = [*BUILTIN, "Descending"]
POLICIES += [f"3D of {name}" for name in POLICIES if name[-2:] != "3D" and name not in MEASURING]


@pytest.fixture(params=POLICIES)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    return case_of(request.param, tmp_path_factory.mktemp("plans"))


# ---- what ranks measure


def run_time_s(rank: int, number: int, schedule: FrequencySchedule | None) -> float:
    """How long the instruction at a position of a rank's iteration takes: in part, it follows the clock."""
    mhz = (schedule.frequencies[number][1] if schedule else 0) or CLOCKS[-1]
    return (0.1 if NAMES[rank][number] == "forward" else 0.2) * (0.3 + 0.7 * CLOCKS[-1] / mhz) * (1 + 1e-4 * rank)


PIPELINE = make_pipeline("1f1b", STAGES, MICROBATCHES)
PATHS = LongestPaths(PIPELINE.topological, PIPELINE.edges)


def span_of_pipeline_s(pipeline: int, schedules: Mapping[int, FrequencySchedule]) -> float:
    """How long the instructions of a pipeline take, which wait for each other."""
    ranks = [info.rank for info in INFOS if info.dp_rank == pipeline]
    times_s = [[run_time_s(rank, number, schedules.get(rank))] for rank in ranks for number in range(2 * MICROBATCHES)]
    return float(PATHS.ends(np.array(times_s)).ends_s.max())


def honest_result(rank: int, request: ScheduleRequest, slower: float) -> ProfilingResult:
    """What a rank measures that follows a request in its turns, on a GPU whose power follows the cube of its clock."""
    times: dict[str, list[list[float]]] = {name: [] for name in NAMES[rank]}
    energies: dict[str, list[list[float]]] = {name: [] for name in NAMES[rank]}
    seconds: dict[tuple[str, int], float] = {}
    spans_s, energies_j = [], []
    for step in range(request.steps or ITERATIONS):
        in_force = {
            one.rank: one
            for one in request.schedules
            if follows(request.turns, step, half_of(INFOS[one.rank].pp_rank, INFOS[one.rank].dp_rank))
        }
        schedule, of_step = in_force.get(rank), {name: (list[float](), list[float]()) for name in times}
        for number, name in enumerate(NAMES[rank]):
            mhz = (schedule.frequencies[number][1] if schedule else 0) or CLOCKS[-1]
            time_s = slower * run_time_s(rank, number, schedule)
            of_step[name][0].append(time_s)
            of_step[name][1].append(power_w(mhz) * time_s)
            seconds[name, mhz] = seconds.get((name, mhz), 0.0) + time_s
        for name, (own_s, own_j) in of_step.items():
            times[name].append(own_s)
            energies[name].append(own_j)
        spans_s.append(slower * span_of_pipeline_s(INFOS[rank].dp_rank, in_force) + 1e-4 * step)
        busy_s, busy_j = (sum(sum(each[part]) for each in of_step.values()) for part in (0, 1))
        energies_j.append(busy_j + 70 * (spans_s[-1] - busy_s))
    powers = [
        InstructionPower(instruction=name, frequency=mhz, power=power_w(mhz), error=0.1, seconds=time_s)
        for (name, mhz), time_s in seconds.items()
    ]
    return ProfilingResult(
        rank=rank,
        iter_time=[span_s + 0.01 for span_s in spans_s],
        iter_energy=energies_j,
        time_breakdown=times,
        energy_breakdown=energies,
        iter_span=spans_s,
        powers=[*powers, InstructionPower(instruction="", frequency=0, power=70, error=1, seconds=1)],
        switching=Switching(mode="device", call_s=1e-4, latencies_s=dict.fromkeys(CLOCKS, 1e-4)),
    )


def power_w(mhz: int) -> float:
    return 100 + 250 * (mhz / CLOCKS[-1]) ** 3


def with_values(value: float) -> Callable[[ProfilingResult], ProfilingResult]:
    """Puts a value into the first place of every list of a result."""

    def first(rows: dict[str, list[list[float]]]) -> dict[str, list[list[float]]]:
        return {name: [[value, *of[0][1:]], *of[1:]] for name, of in rows.items()}

    def change(result: ProfilingResult) -> ProfilingResult:
        changed: dict[str, Any] = {name: [value, *getattr(result, name)[1:]] for name in LISTS}
        changed |= {name: first(getattr(result, name)) for name in BREAKDOWNS}
        powers = [power.model_copy(update={"power": value}) for power in result.powers]
        # not validated: a policy does not rely on who reads the files
        return ProfilingResult.model_construct(rank=result.rank, powers=powers, **changed)

    return change


def all_zero(result: ProfilingResult) -> ProfilingResult:
    zeros = {name: [[0.0] * len(row) for row in rows] for name, rows in result.time_breakdown.items()}
    lists = dict.fromkeys(LISTS, [0.0] * len(result.iter_time))
    return result.model_copy(update={**lists, **dict.fromkeys(BREAKDOWNS, zeros), "powers": []})


LISTS, BREAKDOWNS = ("iter_time", "iter_energy", "iter_span"), ("time_breakdown", "energy_breakdown")
DAMAGES: dict[str, Callable[[ProfilingResult], ProfilingResult | None]] = {
    "none": lambda result: result,
    "missing": lambda result: None,
    "empty": lambda result: ProfilingResult(rank=result.rank, iter_time=[], iter_energy=[]),
    "zero": all_zero,
    "other rank": lambda result: result.model_copy(update={"rank": result.rank + 1}),
    "no powers": lambda result: result.model_copy(update={"powers": []}),
    "no energies": lambda result: result.model_copy(update={"powers": [], "iter_energy": [], "energy_breakdown": {}}),
    "no spans": lambda result: result.model_copy(update={"iter_span": []}),
    "other instructions": lambda result: result.model_copy(update={"time_breakdown": {"odd": [[1.0]]}}),
    "short": lambda result: result.model_copy(update={"iter_time": result.iter_time[:1], "iter_energy": []}),
    **{
        f"first value {value}": with_values(value)
        for value in (math.nan, math.inf, -math.inf, -1.0, 0.0, 1e-300, 1e-9, 1e6, 1e12, 1e300)
    },
}


class Results(NamedTuple):
    """A window, by how each rank's result is damaged and how much slower it was than expected."""

    damages: tuple[str, ...]
    slower: float

    def under(self, request: ScheduleRequest) -> list[ProfilingResult]:
        found = []
        for info, damage in zip(INFOS, self.damages, strict=True):
            result = DAMAGES[damage](honest_result(info.rank, request, self.slower))
            if result is not None:
                found.append(result)
        return found


Event: TypeAlias = Results | PlanInputs | list[IterationTime]

HONEST = Results(("none",) * JOB.world_size, 1.0)
slowdowns = st.sampled_from([1.0, 1.0, 1.001, 1.03, 1.3, 1e-3, 1e4])
windows = st.builds(
    Results, st.just(HONEST.damages) | st.tuples(*[st.sampled_from(sorted(DAMAGES))] * JOB.world_size), slowdowns
)
targets = st.sampled_from(
    [Target(slowdown=1.1), Target(deadline=1e-6), Target(deadline=5.0), Target(power=1e-3), Target(power=1200.0)]
)
plan_inputs = st.builds(
    PlanInputs,
    target=st.none() | targets,
    straggler=st.none() | st.builds(Straggler, slowdown=st.just(1.2), pipeline=st.sampled_from([None, 0, 1, 7])),
    slow_pipelines=st.sampled_from([{}, {}, {1: 1.2}, {0: 1.1, 1: 1.2}]),
    remeasure_epoch=st.integers(0, 2),
)
spans = st.sampled_from([1.0, 1.2, 2.0, 100.0, 0.0, -1.0, math.nan, math.inf, 1e300])
iteration_times = st.lists(
    st.builds(IterationTime, st.integers(-1, 2), st.integers(0, 40), st.integers(0, 3), spans), max_size=6
)


@st.composite
def histories(draw: st.DrawFn) -> list[Event]:
    """Honest windows, so that policies get somewhere, and then whatever may come."""
    prefix: list[Event] = [HONEST] * draw(st.sampled_from([0, 1, 2, 4, 6]))
    return prefix + draw(st.lists(windows | plan_inputs | iteration_times, max_size=6))


thorough = settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


def tell(scheduler: FrequencyScheduler, event: Event) -> None:
    if isinstance(event, Results):
        scheduler.observe(event.under(scheduler.request()))
    elif isinstance(event, PlanInputs):
        scheduler.react(event)
    else:
        scheduler.assess(event)


NEW_REFERENCE: list[Event] = [HONEST] * 5 + [HONEST._replace(slower=1.3)] * 2
NEW_REFERENCE += [PlanInputs(slow_pipelines={0: 1.1, 1: 1.2}), PlanInputs(), HONEST]
"""Max clocks are measured again, with another time, and then there are stragglers for a while."""


@pytest.mark.slow
@thorough
@given(events=histories())
def test_whatever_comes_all_it_asks_for_can_be_run_under_a_revision_of_its_own(case: Case, events: list[Event]) -> None:
    scheduler = case.make()
    before = scheduler.request()
    assert before.revision == 0
    epoch = 0
    for event in events:
        tell(scheduler, event)
        after = scheduler.request()
        assert scheduler.request() == after, "asking changes nothing"
        check_schedules(after.schedules, JOB, INFOS, ORDERS)
        assert isinstance(scheduler.export_profile(), str)
        assert all(math.isfinite(value) for value in scheduler.model().values())
        new_window = (
            isinstance(event, Results) and not scheduler.done and (case.yields_lists or after.purpose == "measure")
        )
        new_epoch = not scheduler.done and scheduler.plan_inputs.remeasure_epoch != epoch
        epoch = epoch if scheduler.done else scheduler.plan_inputs.remeasure_epoch
        changed = (after.schedules, after.purpose) != (before.schedules, before.purpose)
        assert after.revision - before.revision == (new_window or new_epoch or changed)
        before = after


@pytest.mark.slow
@thorough
@given(events=histories(), cut=st.integers(0, 30))
@example(events=NEW_REFERENCE, cut=20)
def test_a_replay_up_to_any_point_goes_on_as_the_first_one_did(case: Case, events: list[Event], cut: int) -> None:
    """A restart: what was observed and told is repeated, without the iteration times, which are not recorded."""
    original, restarted = case.make(), case.make()
    original.request()
    for event in events[:cut]:
        tell(original, event)
        original.request()
    restarted.request()
    for event in events[:cut]:
        if not isinstance(event, list):
            tell(restarted, event)
    restarted.continue_from(original.request().revision)
    for event in [None, *events[cut:]]:
        if event is not None and not isinstance(event, list):
            tell(original, event)
            tell(restarted, event)
        ours, theirs = original.request(), restarted.request()
        assert (ours.revision, ours.purpose, ours.converged) == (theirs.revision, theirs.purpose, theirs.converged)
        assert ours.schedules == theirs.schedules
        assert original.done == restarted.done


@pytest.mark.slow
def test_honest_windows_take_the_default_policy_to_a_plan_that_it_keeps(tmp_path: Path) -> None:
    """Or the suite would show nothing about plans."""
    scheduler = case_of("ParetoScheduler", tmp_path).make()
    for _ in range(16):
        scheduler.observe(HONEST.under(scheduler.request()))
        if (kept := scheduler.request()).converged:
            break
    assert kept.converged
    assert kept.purpose == "run"
    assert "steps at default clocks" in kept.message
    assert any(mhz < CLOCKS[-1] for plan in kept.schedules for _, mhz in plan.frequencies)
