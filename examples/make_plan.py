"""Make a frequency plan for a 1F1B pipeline of simulated A100s, by giving away slack: no solver, one page.

    python examples/make_plan.py --stages 8 --num-microbatches 12 -o examples/plan_8x12.yaml

All instructions begin at the top clock. Then, over and over, the instruction that saves most energy for the time it
loses goes one clock down, if its slack allows; the iteration never gets longer. (A planner that comes with a
certificate finds a little more; this one shows what a plan is.)
"""

from __future__ import annotations

import argparse
import heapq
from itertools import pairwise
from pathlib import Path

from pfo_fs.device.simulated import BLOCKING_POWER_W, CLOCKS_MHZ, Coefficients, coefficients
from pfo_fs.models import FrequencySchedule, JobInfo, RankInfo
from pfo_fs.scheduler import format_schedule_yaml

CLOCKS = [mhz for mhz in CLOCKS_MHZ if mhz >= 855]
"""Below 855 MHz the simulated GPU is an extrapolation: real ones burn more energy there, not less."""

Node = tuple[int, str, int]  # stage, instruction, micro-batch


def order_1f1b(stage: int, stages: int, microbatches: int) -> list[Node]:
    """The instructions of a stage in order."""
    warm_up = min(stages - stage - 1, microbatches)
    order: list[Node] = [(stage, "forward", m) for m in range(warm_up)]
    for m in range(microbatches - warm_up):
        order += [(stage, "forward", warm_up + m), (stage, "backward", m)]
    return order + [(stage, "backward", m) for m in range(microbatches - warm_up, microbatches)]


class Pipeline:
    """The DAG of one iteration, in an order that respects it."""

    def __init__(self, stages: int, microbatches: int) -> None:
        self.orders = [order_1f1b(stage, stages, microbatches) for stage in range(stages)]
        self.before: dict[Node, list[Node]] = {node: [] for order in self.orders for node in order}
        for order in self.orders:
            for earlier, later in pairwise(order):
                self.before[later].append(earlier)
        for stage, name, m in self.before:
            neighbour = (stage - 1, name, m) if name == "forward" else (stage + 1, name, m)
            if neighbour in self.before:
                self.before[stage, name, m].append(neighbour)
        self.after: dict[Node, list[Node]] = {node: [] for node in self.before}
        for node, earlier_nodes in self.before.items():
            for earlier in earlier_nodes:
                self.after[earlier].append(node)
        waiting = {node: len(earlier) for node, earlier in self.before.items()}
        self.topological = [node for node, count in waiting.items() if count == 0]
        for node in self.topological:
            for later in self.after[node]:
                waiting[later] -= 1
                if waiting[later] == 0:
                    self.topological.append(later)

    def slacks(self, time_s: dict[Node, float]) -> tuple[float, dict[Node, float]]:
        """The iteration's time, and by how much each instruction could be longer without changing it."""
        ends: dict[Node, float] = {}
        for node in self.topological:
            ends[node] = max((ends[earlier] for earlier in self.before[node]), default=0.0) + time_s[node]
        total = max(ends.values())
        latest: dict[Node, float] = {}
        for node in reversed(self.topological):
            latest[node] = min((latest[later] - time_s[later] for later in self.after[node]), default=total)
        return total, {node: latest[node] - ends[node] for node in ends}


def cost_j(model: Coefficients, mhz: int) -> float:
    """Energy beyond what the GPU burns anyway while it waits for its neighbours."""
    return (model.power_w(mhz) - BLOCKING_POWER_W) * model.time_s(mhz)


def plan(stages: int, microbatches: int) -> tuple[Pipeline, dict[Node, int], float, float]:
    """The pipeline, each instruction's clock in MHz, the iteration's time in s, and the share of energy saved."""
    pipeline = Pipeline(stages, microbatches)
    models = {node: coefficients(node[1], last_stage=node[0] == stages - 1) for node in pipeline.topological}
    level = dict.fromkeys(models, 0)
    time_s = {node: model.time_s(CLOCKS[0]) for node, model in models.items()}
    total_s, slack = pipeline.slacks(time_s)

    def offer(node: Node) -> tuple[float, Node] | None:
        """(-joules saved per second lost, node) of going one clock down; None if that saves nothing."""
        model, at = models[node], level[node]
        if at + 1 == len(CLOCKS):
            return None
        saved = cost_j(model, CLOCKS[at]) - cost_j(model, CLOCKS[at + 1])
        return (-saved / (model.time_s(CLOCKS[at + 1]) - time_s[node]), node) if saved > 0 else None

    offers = [found for node in models if (found := offer(node))]
    heapq.heapify(offers)
    while offers:
        _, node = heapq.heappop(offers)
        slower_s = models[node].time_s(CLOCKS[level[node] + 1])
        if slower_s - time_s[node] > slack[node] + 1e-12:
            continue  # slack never comes back
        level[node] += 1
        time_s[node] = slower_s
        _, slack = pipeline.slacks(time_s)
        if again := offer(node):
            heapq.heappush(offers, again)
    top = sum(cost_j(model, CLOCKS[0]) for model in models.values()) + stages * total_s * BLOCKING_POWER_W
    mhz = {node: CLOCKS[at] for node, at in level.items()}
    now = sum(cost_j(models[node], mhz[node]) for node in models) + stages * total_s * BLOCKING_POWER_W
    return pipeline, mhz, total_s, 1 - now / top


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stages", type=int, default=8)
    parser.add_argument("--num-microbatches", type=int, default=12)
    parser.add_argument("-o", "--output", type=Path, required=True, help="schedule.yaml to write")
    args = parser.parse_args()
    pipeline, mhz, total_s, saved = plan(args.stages, args.num_microbatches)
    schedules = [
        FrequencySchedule(rank=stage, frequencies=[(node[1], mhz[node]) for node in order])
        for stage, order in enumerate(pipeline.orders)
    ]
    infos = [
        RankInfo(rank=stage, dp_rank=0, pp_rank=stage, tp_rank=0, available_frequencies=list(CLOCKS_MHZ))
        for stage in range(args.stages)
    ]
    job = JobInfo(pp_degree=args.stages, dp_degree=1, tp_degree=1, world_size=args.stages)
    comment = (
        f"{args.stages} stages x {args.num_microbatches} micro-batches, 1F1B, simulated A100 (examples/make_plan.py): "
        f"{total_s:.3f} s as at the top clock, {saved:.1%} of the energy saved"
    )
    args.output.write_text(format_schedule_yaml(schedules, infos, job, comment=comment))
    print(comment)


if __name__ == "__main__":
    main()
