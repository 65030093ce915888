"""The DAG (directed acyclic graph) of one iteration: the order of instructions on each rank, and their dependencies."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from pfo_fs.errors import PlanError
from pfo_fs.planner.longest_paths import neighbours

if TYPE_CHECKING:
    from torch.distributed.pipelining.schedules import _Action


class Instruction(NamedTuple):
    """One instruction of one iteration."""

    stage: int
    name: str
    microbatch: int

    def __str__(self) -> str:
        return f"{self.name} of micro-batch {self.microbatch} on stage {self.stage}"


class Dependency(NamedTuple):
    """`after` begins no sooner than `delay_s` after the end of `before`."""

    before: Instruction
    after: Instruction
    delay_s: float = 0.0


@dataclass(frozen=True)
class Pipeline:
    """The instructions of one iteration in order, rank by rank, with the dependencies between ranks.

    Attributes:
        orders: For each rank of the pipeline, from 0, its instructions in order; a rank runs one at a time.
        dependencies: Which instruction waits for which, besides the order within a rank.
        name: Name of the kind of schedule, for messages.
    """

    orders: tuple[tuple[Instruction, ...], ...]
    dependencies: tuple[Dependency, ...]
    name: str = "custom"

    def __post_init__(self) -> None:
        if not self.orders or not all(self.orders):
            raise PlanError("a pipeline needs at least one rank, and every rank at least one instruction")
        for instruction, count in Counter(self.instructions).items():
            if count > 1:
                raise PlanError(f"{instruction} is listed {count} times; list every instruction of an iteration once")
        for before, after, delay_s in self.dependencies:
            for end in (before, after):
                if end not in self.position:
                    raise PlanError(f"a dependency names {end}, which no rank runs")
            if not 0 <= delay_s < float("inf"):
                raise PlanError(f"the delay between {before} and {after} is {delay_s} s; it must be finite, 0 or more")
        if len(self.topological) < len(self.instructions):
            stuck = self.instructions[min(set(range(len(self.instructions))) - set(self.topological))]
            raise PlanError(f"the dependencies go in a circle through {stuck}: no order of execution satisfies them")

    @cached_property
    def instructions(self) -> tuple[Instruction, ...]:
        """All instructions, those of rank 0 first; their positions here are the nodes of the DAG."""
        return tuple(instruction for order in self.orders for instruction in order)

    @cached_property
    def position(self) -> Mapping[Instruction, int]:
        """Node of each instruction."""
        return {instruction: node for node, instruction in enumerate(self.instructions)}

    @cached_property
    def first_nodes(self) -> tuple[int, ...]:
        """Node of each rank's first instruction, and at the end the number of nodes."""
        firsts = [0]
        for order in self.orders:
            firsts.append(firsts[-1] + len(order))
        return tuple(firsts)

    @cached_property
    def edges(self) -> tuple[tuple[int, int, float], ...]:
        """(before, after, delay in s) as nodes: the order within ranks, then the dependencies beyond this order."""
        edges: dict[tuple[int, int], float] = {}
        rank_of: list[int] = []
        for rank, (first, end) in enumerate(pairwise(self.first_nodes)):
            rank_of += [rank] * (end - first)
            for node in range(first, end - 1):
                edges[node, node + 1] = 0.0
        for before, after, delay_s in self.dependencies:
            key = self.position[before], self.position[after]
            implied = delay_s == 0 and key[0] < key[1] and rank_of[key[0]] == rank_of[key[1]]
            if not implied:
                edges[key] = max(delay_s, edges.get(key, 0.0))
        return tuple((before, after, delay_s) for (before, after), delay_s in edges.items())

    @cached_property
    def topological(self) -> tuple[int, ...]:
        """The nodes in an order in which each node comes after the nodes that it waits for."""
        before, after = neighbours(len(self.instructions), self.edges)
        waiting = [len(own) for own in before]
        order = [node for node, count in enumerate(waiting) if count == 0]
        for node in order:
            for later, _ in after[node]:
                waiting[later] -= 1
                if waiting[later] == 0:
                    order.append(later)
        return tuple(order)

    @property
    def num_stages(self) -> int:
        """Number of stages over all ranks."""
        return 1 + max(instruction.stage for instruction in self.instructions)

    @property
    def num_microbatches(self) -> int:
        """Number of micro-batches of an iteration."""
        return len({instruction.microbatch for instruction in self.instructions})

    def with_delay(self, delay_s: float) -> Pipeline:
        """Returns the same pipeline with `delay_s` (s) on every dependency between two ranks (communication)."""
        rank_of = {instruction: rank for rank, order in enumerate(self.orders) for instruction in order}
        moved = (
            edge._replace(delay_s=delay_s) if rank_of[edge.before] != rank_of[edge.after] else edge
            for edge in self.dependencies
        )
        return Pipeline(self.orders, tuple(moved), self.name)


def stage_dependencies(orders: Iterable[Sequence[Instruction]]) -> tuple[Dependency, ...]:
    """Returns the dependencies of training with pipeline parallelism; they are the same for all orders within ranks.

    A forward waits for the forward of the stage before. The instruction that computes a stage's input gradient
    (`backward`, `backward_input` or `forward_backward`) waits for that of the stage behind, for its own forward, and
    for its `recomputation` if there is one. A `recomputation` waits for its forward, and a `backward_weight` for its
    `backward_input`.

    Args:
        orders: Instructions of each rank; instructions with other names have no dependencies.
    """
    known = dict.fromkeys(instruction for order in orders for instruction in order)
    gradient = {
        (i.stage, i.microbatch): i for i in known if i.name in ("backward", "backward_input", "forward_backward")
    }
    found: list[Dependency] = []

    def wait(after: Instruction, before: Instruction | None) -> None:
        if before is not None and before in known:
            found.append(Dependency(before, after))

    for instruction in known:
        stage, name, microbatch = instruction
        if name == "forward":
            wait(instruction, Instruction(stage - 1, "forward", microbatch))
        elif name in ("backward", "backward_input", "forward_backward"):
            wait(instruction, gradient.get((stage + 1, microbatch)))
            wait(instruction, Instruction(stage, "forward", microbatch))
            wait(instruction, Instruction(stage, "recomputation", microbatch))
        elif name == "backward_weight":
            wait(instruction, Instruction(stage, "backward_input", microbatch))
        elif name == "recomputation":
            wait(instruction, Instruction(stage, "forward", microbatch))
    return tuple(found)


def pipeline_from_orders(orders: Sequence[Sequence[tuple[int, str, int]]], name: str = "custom") -> Pipeline:
    """Returns the pipeline in which ranks run `orders`, with the dependencies of `stage_dependencies`.

    Args:
        orders: For each rank, (stage, instruction, micro-batch) in order.

    Raises:
        PlanError: The orders cannot run: an instruction is listed twice, or instructions wait for each other in a
            circle.
    """
    rows = tuple(tuple(Instruction(*step) for step in order) for order in orders)
    return Pipeline(rows, stage_dependencies(rows), name)


_TORCH_NAMES = {
    "FORWARD": "forward",
    "FULL_BACKWARD": "backward",
    "BACKWARD": "backward",
    "BACKWARD_INPUT": "backward_input",
    "BACKWARD_WEIGHT": "backward_weight",
}


def pipeline_from_torch(schedule: object) -> Pipeline:
    """Returns the pipeline that a `torch.distributed.pipelining` schedule object runs.

    It reads `pipeline_order_with_comms` if the schedule has it, since that is then what runs, also if it was loaded
    from a file; else `pipeline_order`, which holds the actions of all ranks on every rank. A stage's forwards that are
    not numbered 0 to n - 1 (last rank of `Schedule1F1B` in torch 2.13) are numbered in order.

    Raises:
        PlanError: The schedule has no `pipeline_order`, or that holds nothing to compute.
    """
    rows = getattr(schedule, "pipeline_order_with_comms", None) or getattr(schedule, "pipeline_order", None)
    if not isinstance(rows, Mapping) or not rows:
        raise PlanError(
            f"{type(schedule).__name__} has no pipeline_order; give a schedule of torch.distributed.pipelining, or the "
            "instructions of each rank to pipeline_from_orders"
        )
    orders = [_numbered([step for action in rows[rank] for step in _torch_steps(action)]) for rank in sorted(rows)]
    return pipeline_from_orders(orders, name=type(schedule).__name__)


def _torch_steps(action: _Action | None) -> Iterable[Instruction]:
    if action is None:
        return
    if getattr(action, "sub_actions", None):
        for part in action.sub_actions:
            yield from _torch_steps(part)
        return
    name = _TORCH_NAMES.get(getattr(action.computation_type, "name", ""))
    if name is not None:
        yield Instruction(int(action.stage_index), name, int(action.microbatch_index))


def _numbered(order: Sequence[Instruction]) -> list[Instruction]:
    """Numbers the micro-batches of a stage's forwards by occurrence where they are not 0 to n - 1."""
    forwards: dict[int, list[int]] = defaultdict(list)
    for stage, name, microbatch in order:
        if name == "forward":
            forwards[stage].append(microbatch)
    wrong = {stage for stage, numbers in forwards.items() if sorted(numbers) != list(range(len(numbers)))}
    seen: dict[int, int] = defaultdict(int)
    result = []
    for instruction in order:
        if instruction.name == "forward" and instruction.stage in wrong:
            instruction = instruction._replace(microbatch=seen[instruction.stage])
            seen[instruction.stage] += 1
        result.append(instruction)
    return result
