"""Plans of the `lowtime` package, the planner of the Perseus paper, for the same problem, for comparison.

The steps and their constants are those of lowtime's documented script (`examples/perseus.py`): effective energies over
quantised times, the Pareto filter with its noise factor, an exponential fitted to each instruction, and then the
Phillips-Dessouky algorithm, which goes from the slowest plan to the fastest in steps of `unit_time_s`.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pfo_fs.errors import ConfigError, Impossible, PlannerError
from pfo_fs.planner.plan import Plan
from pfo_fs.planner.problem import Problem
from pfo_fs.planner.profile import Kind, Measurement

if TYPE_CHECKING:
    from lowtime.operation import Operation, OperationSpec
    from networkx import DiGraph

UNIT_TIME_S = 0.001
NOISE_FACTOR = 0.95
_FEW_OPTIONS = 3
_OVERSHOOT = 0.03
"""Relative: lowtime's own iteration times are up to 2.6 % too short. When they are shorter than a deadline by more than
this, the later (faster) plans are not needed."""


def lowtime_plans(problem: Problem, unit_time_s: float = UNIT_TIME_S) -> Iterator[tuple[float, Plan]]:
    """Runs lowtime and yields its plans as it finds them, from the slowest to the fastest.

    Args:
        unit_time_s: Time by which an iteration gets shorter from one plan to the next, in s.

    Yields:
        The iteration time in s that lowtime computes for a plan, and the plan, which has the exact time.

    Raises:
        ConfigError: lowtime is not installed, or it cannot express the problem.
        PlannerError: lowtime keeps too few clocks of an instruction, or cannot fit its cost model to them.
    """
    if any(delay_s for _, _, delay_s in problem.pipeline.edges):
        raise ConfigError("lowtime plans without communication delays; leave them out")
    began = time.perf_counter()
    try:
        os.environ.setdefault("MPLBACKEND", "Agg")  # lowtime imports pyplot
        from lowtime.solver import PhillipsDessouky
    except ImportError as error:
        raise ConfigError(f"--solver lowtime needs the package lowtime: pip install lowtime ({error})") from error
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the fits of bad first guesses overflow
        try:
            graph, operations = _graph(problem, unit_time_s)
        except PlannerError:
            raise
        except (ValueError, RuntimeError) as error:
            raise PlannerError(f"lowtime cannot fit its cost model to {problem.profile.source}: {error}") from error
        for result in PhillipsDessouky(graph).run():
            frequencies = tuple(operation.assigned_knob for operation in operations)
            time_s = result.real_time + problem.overhead_s
            yield time_s, Plan(problem, frequencies, "lowtime", time_s, seconds=time.perf_counter() - began)


def lowtime_plan(problem: Problem, deadline_s: float, unit_time_s: float = UNIT_TIME_S) -> Plan:
    """Returns lowtime's plan for a deadline: of those within it, evaluated exactly, the one that takes least energy.

    Raises:
        Impossible: lowtime's fastest plan is slower.
        ConfigError, PlannerError: As for `lowtime_plans`.
    """
    best: Plan | None = None
    shortest_s, seconds = float("inf"), 0.0
    for computed_s, plan in lowtime_plans(problem, unit_time_s):
        seconds, shortest_s = plan.seconds, min(shortest_s, plan.iteration_time_s)
        if plan.iteration_time_s <= deadline_s and (best is None or plan.energy_j < best.energy_j):
            best = plan
        if best is not None and computed_s < deadline_s * (1 - _OVERSHOOT):
            break
    if best is None:
        text = f"lowtime has no plan within {deadline_s:.6g} s; its fastest takes {shortest_s:.6g} s"
        raise Impossible(text, asked=deadline_s, best=shortest_s)
    return best.replace(deadline_s=deadline_s, seconds=seconds)


def _graph(problem: Problem, unit_time_s: float) -> tuple[DiGraph, list[Operation]]:
    import networkx as nx
    from lowtime.graph_utils import add_sink_node, add_source_node
    from lowtime.operation import Operation

    kinds = {(i.stage, i.name) for i in problem.pipeline.instructions}
    specs = {
        kind: _spec(problem.profile.measurements[kind], problem.blocking_power_w, unit_time_s, kind) for kind in kinds
    }
    operations = [Operation(spec=specs[i.stage, i.name]) for i in problem.pipeline.instructions]
    graph = nx.DiGraph()
    for node, operation in enumerate(operations):
        graph.add_node(node, op=operation)
    graph.add_edges_from((first, then) for first, then, _ in problem.pipeline.edges)
    add_source_node(graph, -1)
    add_sink_node(graph, -2)
    graph.graph["source_node"], graph.graph["sink_node"] = -1, -2
    return graph, operations


def _spec(
    measurements: Sequence[Measurement], blocking_power_w: float, unit_time_s: float, kind: Kind
) -> OperationSpec:
    from lowtime.cost_model import ExponentialModel
    from lowtime.operation import CandidateExecutionOptions, ExecutionOption, OperationSpec

    options = [
        ExecutionOption(real_time=m.time_s, unit_time=unit_time_s, cost=m.energy_j, knob=m.frequency_mhz)
        for m in measurements
    ]
    for option in options:
        option.cost -= blocking_power_w * option.quant_time * unit_time_s
    candidates = CandidateExecutionOptions(options=options)
    if len(candidates.options) <= _FEW_OPTIONS:
        candidates = CandidateExecutionOptions(options=options, noise_factor=NOISE_FACTOR)
    if len(candidates.options) <= _FEW_OPTIONS:
        raise PlannerError(
            f"lowtime keeps {len(candidates.options)} options of {kind[1]} on stage {kind[0]} at a unit time of "
            f"{unit_time_s} s"
        )
    return OperationSpec(options=candidates, cost_model=ExponentialModel(candidates, search_strategy="best"))
