"""A data-parallel job whose ranks get unequal sequences, in virtual time, with the code that decides in real jobs.

The work of a sequence of n tokens is that of a transformer's forward and backward: 6 P n floating-point operations in
its matrix products, 6 layers x width x n^2 in causal attention. So `squares`, which is layers x width / P, says how
attention weighs.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from random import Random

from pfo_fs.arrays import Array, np
from pfo_fs.device.simulated.physics import GpuModel
from pfo_fs.errors import PlanError
from pfo_fs.loads.choice import CHANGE_S, LOST_TIME
from pfo_fs.loads.coordinator import LoadCoordinator
from pfo_fs.loads.readers import from_lengths
from pfo_fs.loads.step_rows import load_of_step
from pfo_fs.simulator.load_play import Compared, Decisions, LoadSummary
from pfo_fs.simulator.truth import HighestClocks
from pfo_fs.user_files import csv_table

MODELS: Mapping[str, float] = {"1B": 16 * 2048 / 1.2e9, "8B": 32 * 4096 / 8e9, "70B": 80 * 8192 / 70e9}
"""layers x width / parameters of usual models (Llama 3)."""
_REST_S = 0.02
"""Relative to a mean step: the optimizer's step and what follows it, at the highest clock."""
_FIRST = 10
"""Work is scaled so that this many first steps take the requested time of a step on average."""
_COLUMNS = ("step", "dp_rank", "micro_batch", "length")
_LONGEST = 1_000_000_000

Step = list[list[list[int]]]
"""The lengths of the sequences of each micro-batch of each rank."""


def read_lengths(path: Path) -> list[Step]:
    """Reads steps from a CSV file with columns step, dp_rank, micro_batch, length: a row for each sequence.

    Raises:
        PlanError: The file cannot be read, or a rank has no sequence in a step.
    """
    lengths_of: dict[tuple[int, int], dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    with csv_table(path, _COLUMNS, "a table of lengths") as table:
        for *place, cell in table:
            step, rank, micro_batch = map(table.whole, _COLUMNS, place)
            lengths_of[step, rank][micro_batch].append(table.whole("length", cell, _LONGEST))
    numbers, ranks = (sorted({place[part] for place in lengths_of}) for part in (0, 1))
    if absent := [(step, rank) for step in numbers for rank in ranks if (step, rank) not in lengths_of]:
        raise PlanError(f"{path}: step {absent[0][0]} has no sequence of dp_rank {absent[0][1]}")
    if len(ranks) < 2:
        raise PlanError(f"{path}: it holds {len(ranks)} rank(s); clocks from loads need two or more")
    steps = [[list(lengths_of[step, rank].values()) for rank in ranks] for step in numbers]
    if not any(any(map(any, rank)) for step in steps[:_FIRST] for rank in step):
        raise PlanError(f"{path}: all lengths of the first {_FIRST} steps are 0")
    return steps


def drawn_steps(
    ranks: int, micro_batches: int, context: int, median: int, sigma: float, seed: int
) -> Callable[[int], Step]:
    """Returns steps of packed documents, drawn by their number.

    Args:
        context: Tokens of a micro-batch, which documents fill; the last one is cut.
        median, sigma: Parameters of the log-normal distribution of document lengths.
    """
    import math

    def pack(drawn: Random) -> list[int]:
        left, lengths = context, []
        while left > 0:
            lengths.append(min(left, int(drawn.lognormvariate(math.log(median), sigma)) + 1))
            left -= lengths[-1]
        return lengths

    def step_of(number: int) -> Step:
        drawn = Random(f"{seed} {number}")
        return [[pack(drawn) for _ in range(micro_batches)] for _ in range(ranks)]

    return step_of


def play(
    step_of: Callable[[int], Step],
    gpu: GpuModel,
    squares: float,
    *,
    step_s: float = 2.0,
    noise: float = 0.01,
    steps: Iterable[int],
    seed: int = 0,
) -> LoadSummary:
    """Plays steps from a cold start; returns their summary, whose figures of a plan are those of the second half.

    Args:
        squares: layers x width / parameters of the model.
        step_s: Time of a mean step of the first ten at the highest clock, in s.
        noise: Relative scatter of a rank's time beyond its work.
        steps: The numbers of the steps to play; at least one.
    """
    rng = np.random.default_rng(seed)
    first = [_works(step_of(number), squares) for number in range(_FIRST)]
    scale = step_s / float(np.mean([works.max() for works in first]))
    top, curve = gpu.clocks_mhz[0], gpu.coefficients("backward")
    ranks = len(first[0])
    highest = HighestClocks(gpu, (ranks,), seed)
    coordinator = LoadCoordinator([(rank, 0) for rank in range(ranks)], gpu.clocks_mhz, CHANGE_S, LOST_TIME)
    decisions = Decisions(coordinator, ranks, top)
    history = []
    for number in steps:
        step = step_of(number)
        mhz = decisions.clocks(number, [load_of_step([from_lengths(lengths) for lengths in rank]) for rank in step])
        works_s = _works(step, squares) * scale * np.exp(noise * rng.standard_normal(ranks)) / curve.time_s(top)
        caps_mhz = highest.next_mhz()
        full_s, work_s = (works_s * list(map(curve.time_s, np.minimum(clocks, caps_mhz))) for clocks in (top, mhz))
        time_s, full_time_s = (float(ends_s.max()) + _REST_S * step_s for ends_s in (work_s, full_s))
        powers_w = np.array([curve.power_w(clock) for clock in mhz])
        step_j = work_s * powers_w + (time_s - work_s) * gpu.blocking_power_w
        full_j = full_s * curve.power_w(top) + (full_time_s - full_s) * gpu.blocking_power_w
        history.append(Compared(time_s, full_time_s, float(step_j.sum()), float(full_j.sum())))
        decisions.add(number, time_s, work_s, mhz, step_j)
    return LoadSummary.of(history, history[len(history) // 2 :], history, decisions)


def _works(step: Step, squares: float) -> Array:
    """The work of each rank, (ranks,)."""
    return np.array([sum(n + squares * n * n for lengths in rank for n in lengths) for rank in step])
