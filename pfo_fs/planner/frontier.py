"""The time-energy curve from the fastest plan to the one with least energy, computed once and kept in one file.

The file holds one JSON record per line: first what was planned (the problem's fingerprint), then a record per plan as
it is found. A run that is interrupted leaves a file to which the next run adds what is missing.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Generator, Sequence
from dataclasses import astuple
from itertools import groupby
from pathlib import Path
from typing import Any

from pfo_fs.errors import ConfigError, PlanError
from pfo_fs.planner.plan import Plan
from pfo_fs.planner.planner import Planner
from pfo_fs.planner.problem import Problem
from pfo_fs.planner.switch_costs import ChangeLimits, SwitchCosts
from pfo_fs.user_files import read_user_file

FORMAT = "pfo-fs frontier 1"
MAX_FRONTIER_BYTES = 2**30
MAX_POINTS = 100_000
_CHUNK_NODES = 50_000
"""A chunk of deadlines is planned in one call and has about this many instructions over all its plans. An interruption
loses the chunks that are being planned."""
_MOST = 100


def even_deadlines(planner: Planner, points: int) -> list[float]:
    """Returns deadlines in s, evenly spaced from the fastest plan's iteration time to that of least energy.

    Raises:
        ConfigError: `points` is below 2 or beyond `MAX_POINTS`.
    """
    if not 2 <= points <= MAX_POINTS:
        raise ConfigError(f"a frontier has 2 to {MAX_POINTS:,} points, not {points}")
    first, last = planner.fastest_s, planner.least_energy_s
    deadlines = [first + (last - first) * number / (points - 1) for number in range(points)]
    return [first, *deadlines[1:-1], last]


def solve_frontier(
    problem: Problem, deadlines_s: Sequence[float], file: str | os.PathLike[str] | None = None, workers: int = 1
) -> Generator[Plan, None, None]:
    """Plans for many deadlines and yields the plans as they are found, those of an earlier run first.

    Args:
        problem: The problem.
        deadlines_s: The deadlines, in s.
        file: File that keeps plans as they are found; plans that it already holds are not computed again.
        workers: Number of processes that compute; with more than one, plans come in no particular order.

    Raises:
        PlanError: The file is not a frontier of this problem.
        Impossible: A deadline is shorter than the fastest plan's iteration.
    """
    known = load_frontier(file, problem) if file is not None else {}
    yield from (known[deadline_s] for deadline_s in deadlines_s if deadline_s in known)
    missing = sorted(set(deadlines_s) - known.keys())
    size = min(_MOST, max(4, _CHUNK_NODES // len(problem.pipeline.instructions)))
    chunks = [missing[start : start + size] for start in range(0, len(missing), size)]
    with _Appender(problem, file) as kept:
        if workers <= 1 or len(chunks) <= 1:
            planner = Planner(problem)
            for chunk in chunks:
                for plan in planner.at_each(chunk):
                    kept.add(plan)
                    yield plan
            return
        with _spawn().Pool(min(workers, len(chunks)), _begin, (problem,)) as pool:  # its end ends the workers
            for bodies in pool.imap_unordered(_solve_chunk, chunks):
                for body in bodies:
                    plan = _plan_of(problem, body)
                    kept.add(plan)
                    yield plan


def fingerprint(problem: Problem) -> str:
    """A hash of everything that plans depend on: order, dependencies, profile and constants."""
    pipeline = problem.pipeline
    kinds = sorted({(i.stage, i.name) for i in pipeline.instructions})
    profile = {
        f"{stage} {name}": [(m.frequency_mhz, m.time_s, m.energy_j) for m in problem.profile.measurements[stage, name]]
        for stage, name in kinds
    }
    costs = problem.switch_costs
    constants: list[object] = [
        problem.blocking_power_w,
        problem.overhead_s,
        costs.stands_still_s,
        problem.gpus_per_rank,
    ]
    if costs != SwitchCosts(costs.stands_still_s):
        constants.append(astuple(costs))
    text = json.dumps([pipeline.orders, sorted(pipeline.edges), profile, constants])
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _header(problem: Problem) -> dict[str, Any]:
    return {"format": FORMAT, "problem": fingerprint(problem), "instructions": len(problem.pipeline.instructions)}


def _body_of(plan: Plan) -> dict[str, Any]:
    runs = [[mhz, len(list(same))] for mhz, same in groupby(plan.frequencies_mhz)]
    return {
        "deadline_s": plan.deadline_s,
        "lower_bound_j": plan.lower_bound_j,
        "solver": plan.solver,
        "seconds": plan.seconds,
        "limits": None if plan.limits is None else astuple(plan.limits),
        "clocks_mhz": runs,
    }


def _plan_of(problem: Problem, body: dict[str, Any]) -> Plan:
    runs = [(int(mhz), int(count)) for mhz, count in body["clocks_mhz"]]
    expected = len(problem.pipeline.instructions)
    if any(count < 1 for _, count in runs) or sum(count for _, count in runs) != expected:
        raise PlanError(f"the plan does not have the pipeline's {expected} instructions")
    clocks = [mhz for mhz, count in runs for _ in range(count)]
    bound = body["lower_bound_j"]
    return Plan(
        problem,
        tuple(clocks),
        str(body["solver"]),
        float(body["deadline_s"]),
        lower_bound_j=None if bound is None else float(bound),
        seconds=float(body["seconds"]),
        limits=_limits_of(body.get("limits")),
    )


def _limits_of(body: Any) -> ChangeLimits | None:
    if body is None:
        return None
    changes, too_short, limited = body
    return ChangeLimits(None if changes is None else int(changes), int(too_short), bool(limited))


def load_frontier(path: str | os.PathLike[str], problem: Problem) -> dict[float, Plan]:
    """Reads a frontier file, without an incomplete last line of an interrupted run.

    Args:
        path: The file.
        problem: The problem that the file is for; the figures of plans are computed from it, not read from the file.

    Returns:
        The plans by deadline in s; none if there is no such file.

    Raises:
        PlanError: The file cannot be read, is not a frontier, or is of another problem.
    """
    path = Path(path)
    if not path.exists():
        return {}
    lines = read_user_file(path, MAX_FRONTIER_BYTES, "a frontier").decode(errors="replace").splitlines(keepends=True)
    if len(lines) == 1 and json.dumps(_header(problem)).startswith(lines[0]):
        return {}  # an earlier run was killed while it wrote the header
    plans: dict[float, Plan] = {}
    for number, line in enumerate(lines):
        if not line.endswith("\n") and number:
            break
        try:
            body = json.loads(line)
            if number == 0:
                _check_header(body, problem, path)
                continue
            plan = _plan_of(problem, body)
            assert plan.measurements  # every clock is one that was measured
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            if isinstance(error, PlanError) and number == 0:
                raise
            raise PlanError(
                f"{path}, line {number + 1}: is not a record of a frontier: {error}", line=number + 1
            ) from error
        plans[plan.deadline_s] = plan
    return plans


def _check_header(body: Any, problem: Problem, path: Path) -> None:
    if not isinstance(body, dict) or body.get("format") != FORMAT:
        raise PlanError(f"{path}, line 1: is not a frontier file", line=1)
    if body.get("problem") != fingerprint(problem):
        raise PlanError(
            f"{path}: is the frontier of another problem (other profile, schedule, micro-batches, blocking power or "
            "delays); give another file, or remove this one",
            line=1,
        )


class _Appender:
    """Adds plans to a frontier file, a line each, so that a kill at any time costs at most the last one."""

    def __init__(self, problem: Problem, path: str | os.PathLike[str] | None) -> None:
        self._problem = problem
        self._path = path
        self._file: Any = None

    def __enter__(self) -> _Appender:
        if self._path is not None:
            self._file = open(self._path, "r+b" if Path(self._path).exists() else "w+b")
            content = self._file.read()
            self._file.truncate(content.rfind(b"\n") + 1)
            self._file.seek(0, os.SEEK_END)
            if self._file.tell() == 0:
                self._write(_header(self._problem))
        return self

    def add(self, plan: Plan) -> None:
        if self._file is not None:
            self._write(_body_of(plan))

    def _write(self, body: dict[str, Any]) -> None:
        self._file.write(json.dumps(body).encode() + b"\n")
        self._file.flush()

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()


_planner: Planner | None = None
"""The planner of a worker process."""


def _spawn() -> Any:
    import multiprocessing

    return multiprocessing.get_context("spawn")


def _begin(problem: Problem) -> None:
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; only the parent handles it
    global _planner
    _planner = Planner(problem)


def _solve_chunk(deadlines_s: Sequence[float]) -> list[dict[str, Any]]:
    assert _planner is not None
    return [_body_of(plan) for plan in _planner.at_each(deadlines_s)]
