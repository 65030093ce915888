"""The orders of instructions in the known pipeline schedules, by the schedules' usual names."""

from collections.abc import Callable
from typing import TypeAlias

from pfo_fs.errors import ConfigError
from pfo_fs.planner.pipeline import Instruction, Pipeline, pipeline_from_orders

Order: TypeAlias = "list[Instruction]"
"""A rank's instructions. Functions below take the rank, and the numbers of ranks, stages and micro-batches."""


def _alternating(warm_up: int, total: int, nth: Callable[[str, int], Instruction]) -> Order:
    """Forwards to warm up, then a forward and a backward in turn, then the remaining backwards."""
    order = [nth("forward", number) for number in range(warm_up)]
    for number in range(total - warm_up):
        order += [nth("forward", warm_up + number), nth("backward", number)]
    return order + [nth("backward", number) for number in range(total - warm_up, total)]


def _one_f_one_b(rank: int, ranks: int, stages: int, microbatches: int) -> Order:
    """1F1B, "one forward, one backward" (PipeDream-flush, Megatron-LM): warm-up forwards, then both in turn.

    A stage begins with one warm-up forward per later stage.
    """
    warm_up = min(stages - rank - 1, microbatches)
    return _alternating(warm_up, microbatches, lambda name, number: Instruction(rank, name, number))


def _gpipe(rank: int, ranks: int, stages: int, microbatches: int) -> Order:
    """GPipe: all forwards, then all backwards, in the order of the micro-batches."""
    return [Instruction(rank, name, number) for name in ("forward", "backward") for number in range(microbatches)]


def _interleaved(rank: int, ranks: int, stages: int, microbatches: int) -> Order:
    """Interleaved 1F1B (Narayanan et al., SC'21): rank r holds the stages r, r + ranks, r + 2 ranks, ...

    Raises:
        ConfigError: The stages cannot be spread evenly over the ranks, or micro-batches cannot be divided into equal
            rounds of about `ranks` each.
    """
    if stages % ranks:
        raise ConfigError(f"{stages} stages cannot be spread evenly over {ranks} ranks")
    chunks, rounds = stages // ranks, max(1, microbatches // ranks)
    if microbatches % rounds:
        raise ConfigError(
            f"interleaved 1F1B runs in rounds: {microbatches} micro-batches on {ranks} ranks do not divide "
            f"into {rounds} equal ones; use a multiple of {ranks}"
        )
    size = microbatches // rounds

    def nth(name: str, number: int) -> Instruction:
        round_, within = divmod(number, size * chunks)
        chunk = within // size
        chunk = chunk if name == "forward" else chunks - 1 - chunk
        return Instruction(chunk * ranks + rank, name, round_ * size + within % size)

    total = microbatches * chunks
    return _alternating(min(total, (chunks - 1) * size + 2 * (ranks - 1 - rank)), total, nth)


def _zero_bubble_h1(rank: int, ranks: int, stages: int, microbatches: int) -> Order:
    """ZB-H1 (Qi et al., ICLR'24): 1F1B with the backward split; stage s does the weight gradient s backwards later.

    No rank holds more activations than the first one does in 1F1B.
    """
    order: Order = []
    for instruction in _one_f_one_b(rank, ranks, stages, microbatches):
        number = instruction.microbatch
        if instruction.name == "forward":
            order.append(instruction)
            continue
        order.append(Instruction(rank, "backward_input", number))
        if number >= rank:
            order.append(Instruction(rank, "backward_weight", number - rank))
    put_off = range(max(0, microbatches - rank), microbatches)
    return order + [Instruction(rank, "backward_weight", number) for number in put_off]


def _zero_bubble_v(rank: int, ranks: int, stages: int, microbatches: int) -> Order:
    """ZB-V (Qi et al., "Pipeline Parallelism with Controllable Memory"): stages r and `2 * ranks - 1 - r` on rank r.

    The order is that of `ScheduleZBVZeroBubble` in torch.distributed.pipelining from `2 * ranks - 1` micro-batches on;
    with fewer, give the schedule object to `pipeline_from_torch`.
    """
    order: Order = []
    down, up = rank, stages - 1 - rank
    count: dict[tuple[int, str], int] = {}

    def run(stage: int, *names: str) -> None:
        for name in names:
            number = count.get((stage, name), 0)
            if number < microbatches:
                order.append(Instruction(stage, name, number))
                count[stage, name] = number + 1

    backward = ("backward_input", "backward_weight")
    for _ in range(2 * (ranks - rank) - 1):
        run(down, "forward")
    for _ in range(rank):
        run(up, "forward")
        run(down, "forward")
    for _ in range(ranks - rank):
        run(up, "forward", *backward)
    while min(count.get((up, "forward"), 0), count.get((down, "forward"), 0)) < microbatches:
        run(down, "forward", *backward)
        run(up, "forward", *backward)
    for _ in range(rank):
        run(down, "backward_input")
        run(up, "backward_input")
    for _ in range(ranks - rank):
        run(down, *backward)
    for stage in (up, down):
        run(stage, *["backward_input"] * microbatches, *["backward_weight"] * microbatches)
    return order


def _early_recomputation(rank: int, ranks: int, stages: int, microbatches: int) -> Order:
    """1F1B with early recomputation (Merak, TPDS'23): in the cool-down a stage recomputes while it waits.

    Backwards right behind a forward include their recomputation (`forward_backward`); the later ones are split into a
    `recomputation`, which needs nothing from other stages, and a `backward`.
    """
    order: Order = []
    for instruction in _one_f_one_b(rank, ranks, stages, microbatches):
        number = instruction.microbatch
        if instruction.name == "forward":
            order.append(instruction)
        elif number <= microbatches - stages + rank:
            order.append(Instruction(rank, "forward_backward", number))
        else:
            order += [Instruction(rank, "recomputation", number), instruction]
    return order


SCHEDULES: dict[str, Callable[[int, int, int, int], Order]] = {
    "1f1b": _one_f_one_b,
    "gpipe": _gpipe,
    "interleaved": _interleaved,
    "zb-h1": _zero_bubble_h1,
    "zb-v": _zero_bubble_v,
    "early-recomputation": _early_recomputation,
}

_MOST_PASSES = 200_000
"""At most this many stages x micro-batches (three times 64 x 1,000): more is a mistake, and would fill the memory."""


def make_pipeline(schedule: str, num_stages: int, num_microbatches: int, *, num_ranks: int | None = None) -> Pipeline:
    """Returns the DAG of a known schedule.

    Args:
        schedule: One of `SCHEDULES`.
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
    if schedule == "zb-v" and num_stages % 2:
        raise ConfigError(f"a V-shaped schedule puts two stages on a rank; {num_stages} is odd")
    if schedule == "interleaved" and not num_ranks:
        raise ConfigError("interleaved 1F1B needs the number of ranks that share its stages: num_ranks (--num-ranks)")
    ranks = num_stages // 2 if schedule == "zb-v" else num_stages
    if schedule != "interleaved" and num_ranks not in (None, ranks):
        raise ConfigError(f"{schedule} puts {num_stages} stages on {ranks} ranks, not on {num_ranks}")
    ranks = num_ranks or ranks
    orders = [SCHEDULES[schedule](rank, ranks, num_stages, num_microbatches) for rank in range(ranks)]
    return pipeline_from_orders(orders, schedule)
