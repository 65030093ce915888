"""Makes a problem and its plans from the options of `pfo-fs plan`."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pfo_fs.cli.zeus_dump import read_dump
from pfo_fs.errors import ConfigError, Impossible, PfoError
from pfo_fs.planner import (
    Calibration,
    Plan,
    Planner,
    Problem,
    Profile,
    SwitchCosts,
    all_maximum,
    blocking_power_w,
    calibrate,
    costs_of,
    even_deadlines,
    even_hosts,
    lowtime_plan,
    make_pipeline,
    one_frequency,
    one_per_stage,
    read_iterations,
    read_profile,
    solve_frontier,
)
from pfo_fs.switching_file import read_switching

FRONTIER_FILE = "frontier.jsonl"
"""Keeps the plans of a frontier as they are found, so that an interrupted command can continue."""


@dataclass(frozen=True)
class Request:
    """The options of `pfo-fs plan`."""

    profile: Path
    num_microbatches: int
    schedule: str = "1f1b"
    num_ranks: int | None = None
    p2p_power: float | None = None
    gpu: str | None = None
    gpus_per_rank: int = 1
    delay: float = 0.0
    overhead: float = 0.0
    calibrate: Path | None = None
    derive: bool = False
    switching: Path | None = None
    ranks_per_host: int = 1


def make_problem(request: Request) -> tuple[Problem, Calibration | None]:
    """Returns the problem, and its calibration if --calibrate was given.

    Raises:
        ConfigError: Neither or both of p2p_power and gpu are given, or a number is not valid.
        PlanError: The profile or the file of measured iterations is not valid.
    """
    for option in ("p2p_power", "delay", "overhead"):
        if (getattr(request, option) or 0.0) < 0:
            raise ConfigError(f"--{option.replace('_', '-')} is {getattr(request, option)}; it cannot be negative")
    if request.p2p_power is not None and request.gpu is not None:
        raise ConfigError("give --p2p-power or --gpu, not both")
    if request.p2p_power is None and request.gpu is None:
        raise ConfigError(
            "the power of a GPU that waits for its neighbours is missing: give --p2p-power WATTS (`pfo-fs profile-p2p` "
            "measures it), or --gpu A100 or --gpu A40 for the published figures"
        )
    power_w = request.p2p_power if request.p2p_power is not None else blocking_power_w(request.gpu or "")
    profile = read_dump(request.profile) if request.profile.is_dir() else read_profile(request.profile)
    pipeline = make_pipeline(
        request.schedule,
        profile.num_stages,
        request.num_microbatches,
        num_ranks=request.num_ranks,
        delay_s=request.delay,
    )
    names = sorted({instruction.name for instruction in pipeline.instructions})
    profile = _derived(profile, names, request)
    costs = SwitchCosts()
    if request.switching is not None:
        hosts = even_hosts(len(pipeline.orders), request.ranks_per_host)
        costs = costs_of(read_switching(request.switching), request.gpus_per_rank, hosts)
    problem = Problem(pipeline, profile, power_w, request.overhead, costs, request.gpus_per_rank)
    if request.calibrate is None:
        return problem, None
    if request.delay or request.overhead:
        raise ConfigError("--calibrate finds delay and overhead; leave --delay and --overhead out")
    calibration = calibrate(pipeline, read_iterations(request.calibrate, pipeline))
    return calibration.problem(problem), calibration


def _derived(profile: Profile, names: Sequence[str], request: Request) -> Profile:
    if request.derive:
        return profile.derived(names)
    lacking = [(s, n) for s in range(profile.num_stages) for n in names if n not in profile.instructions(s)]
    if lacking and {"forward", "backward"} <= set(profile.instructions(lacking[0][0])):
        raise ConfigError(
            f"{profile.source}: {request.schedule} runs {lacking[0][1]}, which is not in the profile; add its rows, or "
            "give --derive to estimate it from forward and backward"
        )
    return profile


def find_plans(
    problem: Problem,
    asked: dict[str, float],
    solver: str,
    unit_time_s: float = 0.001,
    max_changes: int | None = None,
) -> list[tuple[str, Plan | str]]:
    """Returns name and plan of each row of the table, simpler plans first, or the reason why a plan cannot be made.

    Without a request, plans may take as long as all instructions at the highest clock. The simpler plans always get the
    deadline of the planned one.

    Args:
        problem: The problem.
        asked: One argument of `Planner.at`, or none for no slowdown.
        solver: `lp`, `lowtime` or `both`.
        unit_time_s: Unit of time of lowtime, in s.
        max_changes: The most clock changes within an iteration; None: no limit.

    Raises:
        Impossible: The planner itself cannot fulfil the request.
        ConfigError: Only lowtime is to be used, but it cannot plan for this request.
    """
    if solver == "lowtime" and asked.keys() & {"energy", "power"}:
        raise ConfigError("lowtime plans for deadlines only; leave --solver out with --energy and --power")
    planner = Planner(problem)
    asked = asked or {"deadline": max(planner.fastest_s, all_maximum(problem).iteration_time_s)}
    plan = planner.at(**asked)
    if max_changes is not None:
        plan = planner.with_few_changes(plan.deadline_s, max_changes, [all_maximum(problem), plan])
    deadline_s = plan.deadline_s
    simple: list[tuple[str, Callable[[], Plan]]] = [
        ("all maximum", lambda: all_maximum(problem)),
        ("one frequency", lambda: one_frequency(problem, deadline_s, plan.straggler_s)),
        ("one per stage", lambda: one_per_stage(problem, deadline_s, plan.straggler_s)),
    ]
    if solver in ("lowtime", "both"):
        simple.append(("lowtime", lambda: lowtime_plan(problem, deadline_s, unit_time_s)))
    found: list[tuple[str, Plan | str]] = []
    for name, make in simple:
        try:
            found.append((name, make().replace(straggler_s=plan.straggler_s)))
        except Impossible as error:
            found.append((name, str(error).removeprefix(f"{name.replace(' ', '-')}: ")))
        except PfoError as error:
            if name != "lowtime" or solver == "both":
                found.append((name, str(error)))
            else:
                raise
    if solver != "lowtime":
        found.append(("planned", plan))
    return found


def frontier_points(
    problem: Problem, points: int, directory: Path | None, workers: int
) -> tuple[int, Generator[Plan, None, None]]:
    """Returns the number of plans, and an iterator that computes them; with a directory, they are kept there."""
    planner = Planner(problem)
    deadlines = even_deadlines(planner, points)
    file = directory / FRONTIER_FILE if directory is not None else None
    return len(set(deadlines)), solve_frontier(problem, deadlines, file, workers)
