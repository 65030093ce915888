"""Durations from what `torch.profiler` has recorded: a Chrome trace (JSON, as it is or compressed) of each rank.

Ranges tell what ran: `PP:1F0` is the forward of micro-batch 0 on stage 1 in schedules of torch.distributed.pipelining;
other schedules there, such as GPipe, and programs by `record_function` record `Forward 0` and `Backward 0`. On a GPU's
stream, a range lasts from the begin of its first kernel to the end of its last one; on the host, while it is launched.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec

from pfo_fs.errors import PlanError, plain_text
from pfo_fs.planner import Instruction, pipeline_from_orders
from pfo_fs.simulator.traces import TIMES_S, Trace, trace_of
from pfo_fs.store import layout
from pfo_fs.user_files import read_user_file

_MOST_BYTES = 2**29
"""The most bytes of a decompressed file: some steps of a large model are 50 to 300 million."""
_MOST_FILES = 1024
SUFFIXES = (".json", ".json.gz")
_RANGE = re.compile(r"(?:PP:(\d{1,4})([FBIW])|(Forward|Backward) )(\d{1,6})")
_SENDS = re.compile(r"PP:(\d{1,4})SEND_F\d+")
_NAMES = {"F": "forward", "B": "backward", "I": "backward_input", "W": "backward_weight"}
Step = dict[tuple[int, str, int], float]
"""Durations in s by (stage, instruction, micro-batch), in their order; stage 0 where ranges do not tell it."""
Warn = Callable[[str], object]
_Range = tuple[float, float, tuple[int, str, int]]
"""Begin in us, duration in s, instruction."""


class _Event(msgspec.Struct):
    cat: str = ""
    name: str = ""
    ts: float = 0.0
    dur: float = 0.0
    pid: int | str = 0
    tid: int | str = 0


class _World(msgspec.Struct):
    rank: int = 0
    world_size: int = 1


class _Device(msgspec.Struct):
    name: str = ""


class _File(msgspec.Struct, rename="camel"):
    trace_events: list[_Event]
    device_properties: list[_Device] = []
    distributed_info: _World = msgspec.field(default_factory=_World)


class _Rank(NamedTuple):
    """What a rank has recorded.

    Attributes:
        steps: Durations of each step.
        last_stage: The last stage that it knows of; -1 where ranges do not tell stages.
        gpu: The name of its GPU; empty if the ranges are those of the host.
    """

    world: _World
    steps: list[Step]
    last_stage: int
    gpu: str

    def at(self, stage: int) -> _Rank:
        """Returns the same for a rank that holds this stage."""
        steps = [{(stage, name, batch): s for (_, name, batch), s in step.items()} for step in self.steps]
        return self._replace(steps=steps, last_stage=stage)


def read_torch_traces(source: Path, num_ranks: int | None = None, warn: Warn = str) -> tuple[Trace, str]:
    """Returns the trace in a folder of files, or in one file, and the name of the GPUs; empty: ranges are of the host.

    Args:
        num_ranks: Ranks of a pipeline where ranges do not tell stages; None: all ranks are one pipeline.
        warn: Called with what is wrong about traces that can be read.

    Raises:
        PlanError: A file cannot be read or has no such ranges, or ranks of a pipeline are missing.
    """
    if source.is_dir() and (source / layout.DIRECTORY).exists():
        raise PlanError(f"{source}: is a shared directory, not a folder of traces; `pfo-fs advise latest {source}`")
    paths = sorted(p for p in source.iterdir() if p.name.endswith(SUFFIXES)) if source.is_dir() else [source]
    if not 0 < len(paths) <= _MOST_FILES:
        raise PlanError(f"{source}: holds {len(paths):,} files {' or '.join(SUFFIXES)}, not 1 to {_MOST_FILES:,}")
    ranks = sorted(map(_read, paths), key=lambda rank: rank.world.rank)
    if len({(rank.last_stage < 0, rank.gpu) for rank in ranks}) > 1:
        raise PlanError(f"{source}: its files were recorded in different ways, or on different GPUs")
    last_stage = max(rank.last_stage for rank in ranks)
    if last_stage < 0:
        last_stage = (num_ranks or max(len(ranks), ranks[0].world.world_size)) - 1
        lanes = max(1, len(ranks) // (last_stage + 1))  # ranks of one stage have neighbouring numbers
        ranks = [rank.at(place // lanes) for place, rank in enumerate(ranks)]
    of_stages: dict[tuple[int, ...], list[list[Step]]] = defaultdict(list)
    for rank in ranks:
        of_stages[tuple(sorted({stage for stage, _, _ in rank.steps[0]}))].append(rank.steps)
    pipelines = {len(lanes_) for lanes_ in of_stages.values()}
    if sorted(stage for stages in of_stages for stage in stages) != list(range(last_stage + 1)) or len(pipelines) > 1:
        raise PlanError(
            f"{source}: its {len(ranks)} traces are not those of whole pipelines of {last_stage + 1} stages; give a "
            "folder with the traces of all ranks, or --num-ranks, the ranks of a pipeline (1 without pipelines)"
        )
    if len(ranks) < (world := ranks[0].world.world_size):
        warn(f"{len(ranks)} of {world} ranks' traces: waits between ranks cannot be seen; give all")
    orders = [max(map(list, lanes_[0]), key=len) for _, lanes_ in sorted(of_stages.items())]
    pipeline = pipeline_from_orders(orders, name="recorded")
    node_of = {tuple(instruction): node for instruction, node in pipeline.position.items()}
    times_s = {
        (number, lane, node_of[place]): time_s
        for lanes_ in of_stages.values()
        for lane, steps in enumerate(lanes_)
        for number, step in enumerate(steps)
        for place, time_s in step.items()
        if place in node_of
    }
    return trace_of(source, pipeline, times_s, range(pipelines.pop())), ranks[0].gpu


def _read(path: Path) -> _Rank:
    try:
        file = msgspec.json.decode(read_user_file(path, _MOST_BYTES, "a trace of torch.profiler"), type=_File)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise PlanError(f"{path}: is not a trace of torch.profiler: {plain_text(str(error), 200)}") from None
    # Collectives, which wait for other ranks, are in streams of their own.
    working = {(e.pid, e.tid) for e in file.trace_events if e.cat == "kernel" and not e.name.lower().startswith("nccl")}
    streams: dict[str, dict[object, list[_Range]]] = {"user_annotation": {}, "gpu_user_annotation": {}}
    last_stage = -1
    for e in file.trace_events:
        if e.cat not in streams:
            continue
        if sends := _SENDS.fullmatch(e.name):
            last_stage = max(last_stage, int(sends[1]) + 1)  # to the next stage
        if (match := _RANGE.fullmatch(e.name)) and (e.cat == "user_annotation" or (e.pid, e.tid) in working):
            stage, letter, word, number = match.groups()
            last_stage = max(last_stage, int(stage or -1))
            instruction = int(stage or 0), _NAMES[letter or word[0]], int(number)
            streams[e.cat].setdefault((e.pid, e.tid), []).append((e.ts, e.dur * 1e-6, instruction))
    on_gpu = streams["gpu_user_annotation"]
    if file.device_properties and streams["user_annotation"] and not on_gpu:
        raise PlanError(f"{path}: its ranges tell when work was launched, not when it ran; add ProfilerActivity.CUDA")
    every = (on_gpu or streams["user_annotation"]).values()
    steps = _steps(path, sorted(max(every, key=lambda own: sum(time_s for _, time_s, _ in own), default=[])))
    gpu = next((device.name for device in file.device_properties), "") if on_gpu else ""
    return _Rank(file.distributed_info, steps, last_stage, gpu)


def _steps(path: Path, ranges: list[_Range]) -> list[Step]:
    """Splits ranges, in their order, into steps: each begins with the first forward of the rank's first stage."""
    first = min((one for _, _, one in ranges if one[1] == "forward"), default=None)
    steps: list[Step] = []
    for _, time_s, instruction in ranges:
        if not TIMES_S[0] <= time_s <= TIMES_S[1]:
            raise PlanError(f"{path}: {Instruction(*instruction)} lasts {time_s:g} s")
        if instruction == first:
            steps.append({})
        if steps:
            steps[-1][instruction] = time_s
    if not steps:
        raise PlanError(
            f"{path}: has no range of the forward of a micro-batch. Record such ranges by a schedule of "
            "torch.distributed.pipelining (Schedule1F1B has none), or around the work of each micro-batch by "
            'record_function("Forward 0"), "Backward 0" and so on'
        )
    return steps
