"""Reads what is planned, also from the folder of a Zeus dump, and makes plans, by the options of `pfo-fs plan`."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from pfo_fs.errors import ConfigError, Impossible, PfoError, PlanError
from pfo_fs.models import FrequencySchedule, ProfilingResult, RankInfo
from pfo_fs.planner import (
    Pipeline,
    Plan,
    Planner,
    Problem,
    Profile,
    all_maximum,
    blocking_power_w,
    lowtime_plan,
    one_frequency,
    one_per_stage,
    read_profile,
)
from pfo_fs.planner.zeus_profile import InstructionProfilingResult
from pfo_fs.store import load_dump

_PROF = re.compile(r"(\d{1,9})\.prof\.json")


def profile_for(pipeline_of: Callable[[int], Pipeline], path: Path, *, derive: bool) -> tuple[Pipeline, Profile]:
    """Returns the pipeline, and the profile of all instructions that it runs.

    `pipeline_of` returns it for a number of stages. `derive`: instructions that the profile lacks are estimated.

    Raises:
        ConfigError: The profile lacks an instruction that could be estimated.
        PlanError: The profile is not valid.
    """
    profile = read_dump(path) if path.is_dir() else read_profile(path)
    pipeline = pipeline_of(profile.num_stages)
    names = sorted({instruction.name for instruction in pipeline.instructions})
    if derive:
        profile = profile.derived(names)
    lacking = [(s, n) for s in range(profile.num_stages) for n in names if n not in profile.instructions(s)]
    if lacking and {"forward", "backward"} <= set(profile.instructions(lacking[0][0])):
        raise ConfigError(
            f"{profile.source}: {pipeline.name} runs {lacking[0][1]}, which is not in the profile; add its rows, or "
            "give --derive to estimate it from forward and backward"
        )
    return pipeline, profile


def read_dump(folder: Path) -> Profile:
    """Returns the profile that a Zeus server, or pfo-fs with `PFO_FS_DUMP_DATA`, has dumped of a job's results.

    Raises:
        PlanError: A file is missing or malformed, or the results do not fit to the schedules.
    """
    numbers = sorted(int(match[1]) for path in folder.iterdir() if (match := _PROF.fullmatch(path.name)))
    if not numbers:
        raise PlanError(f"{folder}: is not the dump of a job: there is no <n>.prof.json in it")
    measured = (
        (load_dump(FrequencySchedule, folder, number), load_dump(ProfilingResult, folder, number)) for number in numbers
    )
    try:
        text = InstructionProfilingResult.from_dump(load_dump(RankInfo, folder), measured).csv_text()
    except PlanError as error:
        raise PlanError(f"{folder}: {error}") from error
    return read_profile(folder, text)


def blocking_power_asked_w(p2p_power: float | None, gpu: str | None) -> float:
    """Returns the power of a waiting GPU by one of two options.

    Raises:
        ConfigError: Neither or both are given.
    """
    if p2p_power is not None and gpu is not None:
        raise ConfigError("give --p2p-power or --gpu, not both")
    if p2p_power is None and gpu is None:
        raise ConfigError(
            "the power of a GPU that waits for its neighbours is missing: give --p2p-power WATTS (`pfo-fs profile-p2p` "
            "measures it), or --gpu A100 or --gpu A40 for the published figures"
        )
    return p2p_power if p2p_power is not None else blocking_power_w(gpu or "")


def find_plans(
    problem: Problem,
    asked: dict[str, float],
    solver: str,
    max_changes: int | None = None,
) -> list[tuple[str, Plan | str]]:
    """Returns name and plan of each row of the table, simpler plans first, or the reason why a plan cannot be made.

    Without a request, plans may take as long as at max clocks. The simpler plans always get the
    deadline of the planned one.

    Args:
        asked: One argument of `Planner.at`, or none for no slowdown.
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
        ("max clocks", lambda: all_maximum(problem)),
        ("one frequency", lambda: one_frequency(problem, deadline_s, plan.straggler_s)),
        ("one per stage", lambda: one_per_stage(problem, deadline_s, plan.straggler_s)),
    ]
    if solver in ("lowtime", "both"):
        simple.append(("lowtime", lambda: lowtime_plan(problem, deadline_s)))
    rows: list[tuple[str, Plan | str]] = []
    for name, make in simple:
        try:
            rows.append((name, make().replace(straggler_s=plan.straggler_s)))
        except Impossible as error:
            rows.append((name, str(error).removeprefix(f"{name.replace(' ', '-')}: ")))
        except PfoError as error:
            if name != "lowtime" or solver == "both":
                rows.append((name, str(error)))
            else:
                raise
    if solver != "lowtime":
        rows.append(("planned", plan))
    return rows
