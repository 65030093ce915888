"""Durations from the log of a training with Megatron-LM: its arguments, and its timers of all ranks.

Megatron prints both if it runs with `--timing-log-level 2 --timing-log-option all`. A timer holds the sum over all
micro-batches of a rank and step, so that what varies among micro-batches stays unknown.
"""

import re
from pathlib import Path

from pfo_fs.arrays import Array, np
from pfo_fs.errors import PlanError
from pfo_fs.planner import Pipeline, make_pipeline
from pfo_fs.simulator.traces import TIMES_S
from pfo_fs.user_files import read_user_file

_MOST_BYTES = 2**28
_MOST_RANKS, _MOST_NODES = 65_536, 32_768
_STEPS, _LANES = 16, 16
"""At most this many of the last steps are taken, and at most this many ranks of each stage, spread over all."""
_ARGUMENT = re.compile(r"(\w+) \.+ (\d{1,9})\s*$")
_TIMER = re.compile(r"(?:^|\s)([a-z-]+):\s*$")
_RANK = re.compile(r"(?:^|\s)rank +(\d{1,9}): (\d{1,9}\.\d\d)\s*$")
_TIMERS = {"forward-compute": "forward", "backward-compute": "backward"}
_LACKS = (
    "; a log of Megatron-LM needs its arguments and, by --timing-log-level 2 --timing-log-option all, the times of "
    "forward-compute and backward-compute of each rank"
)


def read_megatron_log(path: Path) -> tuple[Pipeline, Array]:
    """Returns the pipeline and the durations in s as `advise` takes them; each output of the timers is a step.

    Raises:
        PlanError: The file cannot be read, or lacks arguments or times.
    """
    arguments: dict[str, int] = {}
    logged: list[dict[tuple[str, int], float]] = [{}]
    timer = None
    for line in read_user_file(path, _MOST_BYTES, "a log of Megatron-LM").decode(errors="replace").splitlines():
        if match := _RANK.search(line):
            if timer is not None:
                logged[-1][timer, int(match[1])] = float(match[2]) / 1000
        elif match := _TIMER.search(line):
            timer = _TIMERS.get(match[1])
            if timer == "forward":
                logged.append({})
        elif match := _ARGUMENT.search(line):
            arguments.setdefault(match[1], int(match[2]))
    ranks = arguments.get("world_size", 0)
    steps = [times for times in logged if 0 < len(times) == 2 * ranks <= 2 * _MOST_RANKS]
    if not steps:
        raise PlanError(f"{path}: has no step with the times of all ranks{_LACKS}")
    try:
        stages = arguments["pipeline_model_parallel_size"]
        micro_batches = arguments["global_batch_size"] // (
            arguments["micro_batch_size"] * arguments["data_parallel_size"]
        )
        lanes = ranks // stages  # ranks of one stage have neighbouring numbers
    except (KeyError, ZeroDivisionError) as error:
        raise PlanError(f"{path}: an argument is missing or zero ({error}){_LACKS}") from None
    chunks = max(1, arguments.get("virtual_pipeline_model_parallel_size", 1))
    if not 0 < 2 * stages * chunks * micro_batches <= _MOST_NODES or lanes * stages != ranks:
        raise PlanError(
            f"{path}: {ranks} ranks in {stages} stages of {chunks} chunks, and {micro_batches} micro-batches, are no "
            f"pipelines of at most {_MOST_NODES:,} instructions"
        )
    schedule = "interleaved" if chunks > 1 else "1f1b"
    pipeline = make_pipeline(schedule, stages * chunks, micro_batches, num_ranks=stages)
    steps = steps[1:][-_STEPS:] or steps  # the first one warms up
    names = list(_TIMERS.values())
    sums_s = np.array([[[times.get((name, rank), 0.0) for rank in range(ranks)] for name in names] for times in steps])
    if not TIMES_S[0] <= sums_s.min() <= sums_s.max() <= TIMES_S[1]:
        raise PlanError(f"{path}: the times of a rank are zero, missing, or too long{_LACKS}")
    name_of = [names.index(one.name) for one in pipeline.instructions]
    ranks_of: Array = np.array([[one.stage % stages * lanes] for one in pipeline.instructions])
    taken = np.arange(0, lanes, -(-lanes // _LANES))
    return pipeline, sums_s[:, np.array(name_of)[:, None], ranks_of + taken] / (chunks * micro_batches)
