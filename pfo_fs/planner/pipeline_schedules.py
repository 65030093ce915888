"""The orders of instructions in the known pipeline schedules, by the schedules' usual names."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pfo_fs.errors import ConfigError
from pfo_fs.planner.pipeline import Instruction, Pipeline, pipeline_from_orders

RankInstructions = list[Instruction]


def one_f_one_b(num_stages: int, num_microbatches: int) -> list[RankInstructions]:
    """1F1B, "one forward, one backward" (PipeDream-flush, Megatron-LM): warm-up forwards, then both in turn.

    A stage begins with one warm-up forward per later stage.
    """
    return [_one_f_one_b(stage, num_stages, num_microbatches) for stage in range(num_stages)]


def _one_f_one_b(stage: int, num_stages: int, num_microbatches: int) -> RankInstructions:
    warm_up = min(num_stages - stage - 1, num_microbatches)
    order = [Instruction(stage, "forward", m) for m in range(warm_up)]
    for m in range(num_microbatches - warm_up):
        order += [Instruction(stage, "forward", warm_up + m), Instruction(stage, "backward", m)]
    return order + [Instruction(stage, "backward", m) for m in range(num_microbatches - warm_up, num_microbatches)]


def gpipe(num_stages: int, num_microbatches: int) -> list[RankInstructions]:
    """GPipe: all forwards, then all backwards, in the order of the micro-batches."""
    return [
        [Instruction(stage, name, m) for name in ("forward", "backward") for m in range(num_microbatches)]
        for stage in range(num_stages)
    ]


def interleaved(num_stages: int, num_microbatches: int, num_ranks: int) -> list[RankInstructions]:
    """Interleaved 1F1B (Narayanan et al., SC'21): rank r holds the stages r, r + ranks, r + 2 ranks, ...

    Raises:
        ConfigError: The stages cannot be spread evenly over the ranks, or the micro-batches over rounds of about one
            per rank.
    """
    if num_stages % num_ranks:
        raise ConfigError(f"{num_stages} stages cannot be spread evenly over {num_ranks} ranks")
    chunks = num_stages // num_ranks
    rounds = max(1, num_microbatches // num_ranks)
    if num_microbatches % rounds:
        raise ConfigError(
            f"interleaved 1F1B runs in rounds: {num_microbatches} micro-batches on {num_ranks} ranks do not divide "
            f"into {rounds} equal ones; use a multiple of {num_ranks}"
        )
    size = num_microbatches // rounds

    def nth(rank: int, name: str, number: int) -> Instruction:
        round_, within = divmod(number, size * chunks)
        chunk = within // size
        chunk = chunk if name == "forward" else chunks - 1 - chunk
        return Instruction(chunk * num_ranks + rank, name, round_ * size + within % size)

    orders = []
    total = num_microbatches * chunks
    for rank in range(num_ranks):
        warm_up = min(total, (chunks - 1) * size + 2 * (num_ranks - 1 - rank))
        order = [nth(rank, "forward", number) for number in range(warm_up)]
        for number in range(total - warm_up):
            order += [nth(rank, "forward", warm_up + number), nth(rank, "backward", number)]
        orders.append(order + [nth(rank, "backward", number) for number in range(total - warm_up, total)])
    return orders


def zero_bubble_h1(num_stages: int, num_microbatches: int) -> list[RankInstructions]:
    """ZB-H1 (Qi et al., ICLR'24): 1F1B with the backward split; stage s computes weight gradients s backwards later.

    No rank holds more activations than the first one does in 1F1B.
    """
    orders = []
    for stage in range(num_stages):
        order: RankInstructions = []
        for instruction in _one_f_one_b(stage, num_stages, num_microbatches):
            if instruction.name == "forward":
                order.append(instruction)
                continue
            m = instruction.microbatch
            order.append(Instruction(stage, "backward_input", m))
            if m >= stage:
                order.append(Instruction(stage, "backward_weight", m - stage))
        put_off = range(max(0, num_microbatches - stage), num_microbatches)
        orders.append(order + [Instruction(stage, "backward_weight", m) for m in put_off])
    return orders


def zero_bubble_v(num_stages: int, num_microbatches: int) -> list[RankInstructions]:
    """ZB-V (Qi et al., "Pipeline Parallelism with Controllable Memory", 2024): stages r and 2 ranks - 1 - r on rank r.

    The order is that of `ScheduleZBVZeroBubble` in torch.distributed.pipelining from 2 ranks - 1 micro-batches on; with
    fewer, give the schedule object to `pipeline_from_torch`.

    Raises:
        ConfigError: The number of stages is odd.
    """
    if num_stages % 2:
        raise ConfigError(f"a V-shaped schedule puts two stages on a rank; {num_stages} is odd")
    ranks = num_stages // 2
    return [_zero_bubble_v(rank, ranks, num_microbatches) for rank in range(ranks)]


def _zero_bubble_v(rank: int, ranks: int, num_microbatches: int) -> RankInstructions:
    order: RankInstructions = []
    down, up = rank, 2 * ranks - 1 - rank
    count: dict[tuple[int, str], int] = {}

    def run(stage: int, *names: str) -> None:
        for name in names:
            m = count.get((stage, name), 0)
            if m < num_microbatches:
                order.append(Instruction(stage, name, m))
                count[stage, name] = m + 1

    backward = ("backward_input", "backward_weight")
    for _ in range(2 * (ranks - rank) - 1):
        run(down, "forward")
    for _ in range(rank):
        run(up, "forward")
        run(down, "forward")
    for _ in range(ranks - rank):
        run(up, "forward", *backward)
    while min(count.get((up, "forward"), 0), count.get((down, "forward"), 0)) < num_microbatches:
        run(down, "forward", *backward)
        run(up, "forward", *backward)
    for _ in range(rank):
        run(down, "backward_input")
        run(up, "backward_input")
    for _ in range(ranks - rank):
        run(down, *backward)
    for stage in (up, down):
        run(stage, *["backward_input"] * num_microbatches, *["backward_weight"] * num_microbatches)
    return order


def early_recomputation(num_stages: int, num_microbatches: int) -> list[RankInstructions]:
    """1F1B with early recomputation (Merak, TPDS'23): in the cool-down a stage recomputes while it waits.

    Backwards of the steady phase include their recomputation (`forward_backward`); those behind the last forward are
    split into a `recomputation`, which needs nothing from other stages, and a `backward`.
    """
    orders = []
    for stage in range(num_stages):
        order: RankInstructions = []
        for instruction in _one_f_one_b(stage, num_stages, num_microbatches):
            m = instruction.microbatch
            if instruction.name == "forward":
                order.append(instruction)
            elif m <= num_microbatches - num_stages + stage:
                order.append(Instruction(stage, "forward_backward", m))
            else:
                order += [Instruction(stage, "recomputation", m), Instruction(stage, "backward", m)]
        orders.append(order)
    return orders


SCHEDULES: dict[str, Callable[..., list[RankInstructions]]] = {
    "1f1b": one_f_one_b,
    "gpipe": gpipe,
    "interleaved": interleaved,
    "zb-h1": zero_bubble_h1,
    "zb-v": zero_bubble_v,
    "early-recomputation": early_recomputation,
}


_MOST_PASSES = 200_000
"""Three times 64 stages of 1,000 micro-batches: a larger pipeline is a mistake, and would fill the memory."""


def make_pipeline(
    schedule: str, num_stages: int, num_microbatches: int, *, num_ranks: int | None = None, delay_s: float = 0.0
) -> Pipeline:
    """Returns the DAG of a known schedule.

    Args:
        num_ranks: Number of ranks of the pipeline; only `interleaved` needs it.

    Raises:
        ConfigError: The schedule is unknown, or it does not exist for these numbers.
    """
    if schedule not in SCHEDULES:
        raise ConfigError(f"there is no schedule {schedule!r}; choose {', '.join(SCHEDULES)}")
    if num_stages < 1 or num_microbatches < 1:
        raise ConfigError(f"{num_stages} stages x {num_microbatches} micro-batches; a pipeline has one of each or more")
    if num_stages * num_microbatches > _MOST_PASSES:
        asked = f"{num_stages:,} stages x {num_microbatches:,} micro-batches"
        raise ConfigError(f"{asked}; {_MOST_PASSES:,} is the most that can be planned")
    expected = num_stages // 2 if schedule == "zb-v" else num_stages
    extra: Sequence[int] = ()
    if schedule == "interleaved":
        if not num_ranks:
            raise ConfigError("interleaved 1F1B needs the number of ranks that the stages are spread over")
        extra = (num_ranks,)
    elif num_ranks not in (None, expected):
        raise ConfigError(f"{schedule} puts {num_stages} stages on {expected} ranks, not on {num_ranks}")
    return pipeline_from_orders(SCHEDULES[schedule](num_stages, num_microbatches, *extra), delay_s, schedule)
