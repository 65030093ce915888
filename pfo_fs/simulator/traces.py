"""Traces of real jobs: the durations of all instructions over some steps, for the simulator to play.

A trace is a CSV file, as it is or compressed by gzip, with a row for each instruction:

    step,dp_rank,stage,instruction,micro_batch,time_s
    23,0,0,forward,0,0.063459

Other columns are ignored. Each simulated iteration takes its durations from one step: first the steps in order, then
steps drawn at random. An instruction's length is the mean of its stage; how time and power follow the clock comes from
a GPU model.

    job = read_trace(Path("trace.csv.gz"), pipelines=4).job()
    cluster = job.cluster(seed=1)
"""

import logging
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from pfo_fs.arrays import Array, np
from pfo_fs.device.simulated.physics import A100, GpuModel
from pfo_fs.errors import PlanError, plain_text
from pfo_fs.planner import Instruction, Measurement, Pipeline, make_pipeline
from pfo_fs.simulator.cluster import Nuisances, SimulatedJob
from pfo_fs.simulator.nodes import NodeSettings
from pfo_fs.simulator.truth import Truth
from pfo_fs.user_files import INSTRUCTIONS, TRACE_COLUMNS, csv_table

TIMES_S = 1e-9, 1e6
"""Durations of instructions lie between these; what is computed from others may overflow."""
_MOST_TIMES = 1_000_000
"""Times differ by at most this factor: a stall of a minute beside 0.1 ms. Columns in several units differ by more."""
_NAMES = {"forward", "backward", "backward_input", "backward_weight", "recomputation", "forward_backward"}
SLOW_WORKER = 1.15
"""A pipeline is permanently slow if one of its stages takes 1.15 times as long as in the median pipeline: in the
published traces, healthy ones take at most 1.05 times as long, the slow worker 1.43 times."""
TRACE_NOISE = Nuisances(time_jitter=0.0)
"""The trace has its own jitter of durations."""


@dataclass(frozen=True)
class TracedStages(Truth):
    """The truth of stages whose lengths at the highest clock were measured; all else comes from a GPU model.

    Attributes:
        lengths_s: The duration of each (stage, instruction) at the highest clock, in s.
    """

    lengths_s: Mapping[tuple[int, str], float]
    model: GpuModel = A100
    slowest_mhz = 600  # no plan runs lower

    def measurement(self, stage: int, instruction: str, mhz: int) -> Measurement:
        """Time and energy of an instruction at a clock."""
        curve = self.model.coefficients(instruction)
        time_s = self.lengths_s[stage, instruction] * curve.time_s(mhz) / curve.time_s(curve.top_mhz)
        return Measurement(mhz, time_s, time_s * curve.power_w(mhz))


@dataclass(frozen=True)
class Trace:
    """Durations of all instructions of some pipelines over some steps; the `Variation` of a simulated job.

    Attributes:
        name: The file's name without `.csv` and `.gz`.
        lengths_s: The mean duration of each (stage, instruction), in s.
        table: (steps, nodes, pipelines): durations, relative to `lengths_s`.
    """

    name: str
    pipeline: Pipeline
    lengths_s: Mapping[tuple[int, str], float]
    table: Array
    steps: Sequence[int]
    dp_ranks: Sequence[int]

    @property
    def full_s(self) -> Array:
        """Durations in s, (steps, nodes, pipelines)."""
        lengths_s = [self.lengths_s[one.stage, one.name] for one in self.pipeline.instructions]
        return self.table * np.array(lengths_s)[:, None]

    def factors(self, iteration: int, seed: int) -> Array:
        """Factors of an iteration, (nodes, pipelines): first the steps in order, then steps drawn at random."""
        return self.table[self.place(iteration, seed)]

    def place(self, iteration: int, seed: int) -> int:
        """Returns the place in `steps` of the step that an iteration plays."""
        count = len(self.steps)
        return iteration if iteration < count else Random(f"{seed} {iteration}").randrange(count)

    def judged(self, iterations: int, seed: int) -> Sequence[Array]:
        """Factors of all steps: a plan is judged by the whole trace."""
        return list(self.table)

    def job(
        self, model: GpuModel = A100, nodes: NodeSettings | None = None, nuisances: Nuisances = TRACE_NOISE
    ) -> SimulatedJob:
        """Returns the job that runs this trace, with noise and delays besides the trace's own variation.

        Without nodes, a clock acts only some time after its instruction has begun.
        """
        truth = TracedStages(self.lengths_s, model)
        return SimulatedJob(self.name, self.pipeline, truth, nuisances, nodes, len(self.dp_ranks), self)


def read_trace(
    path: Path,
    schedule: str = "1f1b",
    *,
    num_ranks: int | None = None,
    pipelines: int | None = None,
    without: Collection[int] = (),
) -> Trace:
    """Reads a trace.

    Args:
        schedule: Order of the instructions of a pipeline.
        num_ranks: Ranks of the pipeline, if each holds several stages (interleaved).
        pipelines: Take only this number of pipelines, those of the lowest dp_ranks; None: all.
        without: dp_ranks that are left out, such as slow workers.

    Raises:
        PlanError: The file cannot be read, is not a trace, or does not fit the schedule; the message names the row.
        ConfigError: The schedule does not exist for this number of stages and micro-batches.
    """
    rows: dict[tuple[int, int, Instruction], tuple[float, int]] = {}  # (time, line) by step, dp_rank and instruction
    with csv_table(path, TRACE_COLUMNS, "a trace") as table:
        for step, dp_rank, stage, name, micro_batch, cell in table:
            instruction = Instruction(table.whole("stage", stage), name, table.whole("micro_batch", micro_batch))
            place = table.whole("step", step), table.whole("dp_rank", dp_rank), instruction
            now = table.number("time_s", cell, *TIMES_S, "a number of seconds"), table.line
            if (first := rows.setdefault(place, now)) is not now:
                wrong = f"step {step} of dp_rank {dp_rank} has {_shown(instruction)} twice, first in row {first[1]}"
                raise PlanError(f"{path}: row {table.line}: {wrong}", line=table.line)
    if not rows:
        raise PlanError(f"{path}: the trace has no rows")
    (shortest_s, short_line), (longest_s, long_line) = min(rows.values()), max(rows.values())
    if longest_s > _MOST_TIMES * shortest_s:
        raise PlanError(
            f"{path}: row {long_line} has {longest_s:g} s, more than {_MOST_TIMES:,} times the {shortest_s:g} s of row "
            f"{short_line}; all times are in seconds"
        )
    dp_ranks = sorted({dp_rank for _, dp_rank, _ in rows}.difference(without))
    if pipelines is not None and pipelines > len(dp_ranks):
        raise PlanError(f"{path}: the trace has {len(dp_ranks)} pipelines, fewer than {pipelines}")
    stages = 1 + max(instruction.stage for _, _, instruction in rows)
    micro_batches = 1 + max(instruction.microbatch for _, _, instruction in rows)
    if stages * micro_batches > len(rows):
        raise PlanError(
            f"{path}: {stages} stages x {micro_batches} micro-batches are more instructions than the {len(rows)} rows"
        )
    pipeline = make_pipeline(schedule, stages, micro_batches, num_ranks=num_ranks)
    for (_, _, instruction), (_, line) in rows.items():
        if instruction not in pipeline.position:
            wrong = f"schedule {schedule} has no {_shown(instruction)}; give another --schedule"
            if instruction.name not in _NAMES:
                wrong = f"instruction {plain_text(instruction.name, 40)!r} is unknown: use {INSTRUCTIONS}"
            raise PlanError(f"{path}: row {line}: {wrong}", line=line)
    times_s = {(step, dp, pipeline.position[one]): time_s for (step, dp, one), (time_s, _) in rows.items()}
    return trace_of(path, pipeline, times_s, dp_ranks[:pipelines])


def _shown(instruction: Instruction) -> str:
    name = plain_text(instruction.name, 40)
    return f"{name!r} of micro-batch {instruction.microbatch} on stage {instruction.stage}"


def trace_of(
    path: Path,
    pipeline: Pipeline,
    times_s: Mapping[tuple[int, int, int], float],
    dp_ranks: Sequence[int],
) -> Trace:
    """Returns the trace of the steps without a missing instruction, from times by step, pipeline and node."""
    kinds = [(instruction.stage, instruction.name) for instruction in pipeline.instructions]
    seen = Counter((step, dp_rank) for step, dp_rank, _ in times_s)
    taken = set(dp_ranks)
    all_steps = sorted({step for step, dp_rank in seen if dp_rank in taken})
    steps = [step for step in all_steps if all(seen[step, dp_rank] == len(kinds) for dp_rank in dp_ranks)]
    if not steps:
        raise PlanError(
            f"{path}: no step has all {len(kinds)} instructions of {len(dp_ranks)} pipelines: each step and dp_rank "
            f"needs a row for every micro-batch of every stage"
        )
    if left_out := sorted(set(all_steps) - set(steps)):
        text = "%s: %d of %d steps are left out, step %d first: instructions of theirs are missing"
        logging.getLogger("pfo_fs").warning(text, path, len(left_out), len(all_steps), left_out[0])
    nodes = range(len(kinds))
    times = np.array([[[times_s[step, dp, node] for dp in dp_ranks] for node in nodes] for step in steps])
    lengths_s = {
        kind: float(times[:, [node for node in nodes if kinds[node] == kind]].mean()) for kind in sorted(set(kinds))
    }
    table = times / np.array([lengths_s[kind] for kind in kinds])[:, None]
    name = path.name.removesuffix(".gz").removesuffix(".csv")
    return Trace(name, pipeline, lengths_s, table, steps, dp_ranks)
