"""The planner: from a profile of instructions to a clock for each of them.

Mathematics only: no GPUs, no shared files. What is planned is a `Problem`: a `Pipeline`, a `Profile`, and what clock
changes cost (`SwitchCosts`).

A scenario is one iteration as it was measured; iterations that are all alike are one scenario. `scenario_model` alone
computes time and energy of scenarios at given clocks. One search (`scenarios`) makes plans, in three steps: (1) a
relaxation gives prices of time; (2) dynamic programming finds each rank's cheapest runs of one clock (`rank_runs`); (3)
moves bring the plan within the time and save more (`scenario_descent`). To limit clock changes, each has a price.

`Planner` answers requests for iterations that are alike. A linear program gives the prices, and a lower bound of the
energy (`relaxation`). Where changes cost nothing, `rounding` finds clocks for many deadlines at once; where they cost
something, the search begins at those clocks.

`ScenarioPlanner` is the search. For many unequal iterations of all pipelines, as running jobs have them, the linear
program takes ten seconds (64 iterations); `scenario_relaxation` comes near its answer in one second, by gradient steps.
"""

from pfo_fs.planner.baselines import all_maximum, one_frequency, one_per_stage
from pfo_fs.planner.calibration import Calibration, calibrate
from pfo_fs.planner.lowtime_solver import lowtime_plan, lowtime_plans
from pfo_fs.planner.pipeline import (
    Dependency,
    Instruction,
    Pipeline,
    pipeline_from_orders,
    pipeline_from_torch,
)
from pfo_fs.planner.pipeline_schedules import make_pipeline
from pfo_fs.planner.plan import Plan
from pfo_fs.planner.planner import Planner, even_deadlines, solve_frontier
from pfo_fs.planner.problem import Problem
from pfo_fs.planner.profile import Measurement, Profile, blocking_power_w, read_profile
from pfo_fs.planner.scenarios import ScenarioPlanner, Scenarios
from pfo_fs.planner.switch_costs import SwitchCosts, assumed_costs, even_hosts

__all__ = [
    "Calibration",
    "Dependency",
    "Instruction",
    "Measurement",
    "Pipeline",
    "Plan",
    "Planner",
    "Problem",
    "Profile",
    "ScenarioPlanner",
    "Scenarios",
    "SwitchCosts",
    "all_maximum",
    "assumed_costs",
    "blocking_power_w",
    "calibrate",
    "even_deadlines",
    "even_hosts",
    "lowtime_plan",
    "lowtime_plans",
    "make_pipeline",
    "one_frequency",
    "one_per_stage",
    "pipeline_from_orders",
    "pipeline_from_torch",
    "read_profile",
    "solve_frontier",
]
