"""Part `pipeline`: for each way of switching, how far clocks are from the instructions that they are for, and its cost.

First, one stage of a transformer runs forwards and backwards by turns, as the last stage of a pipeline does. Then two
stages run 1F1B on the one GPU, each in its own CUDA stream: their instructions slow each other down. One thread
launches everything and waits for the device at the end of each step only, as a training loop does that reads its loss.
The first stage is rank 0 of a job of one rank. It follows a plan in which each instruction has a clock of its own, so
the log of the dry run shows for which instruction a clock would have been set. CUDA events show when the device began
the instruction. A dry run cannot learn when a clock acts, so the clock process is told a time, and a clock counts as
changed so long after its request.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch

from benchmarks.gpu.analysis import Step, alternating_clocks, boundary_errors, extra_cost, launch_order, spread
from benchmarks.gpu.cuda import DeviceClock, gpu_spec, make_event, quick
from pfo_fs import PFOFileOptimizer
from pfo_fs.device.clock_start import DRY_RUN_NS
from pfo_fs.device.gpu.spec import open_gpu
from pfo_fs.scheduler.plan_file import format_lowtime_plan

MODES = ("launch", "device")
NONE = "none"
_SETTLE_S = 0.003
"""The clock process follows the last instruction within this time after the device's end."""
_SCHEDULE_S = 30.0


class Sizes(NamedTuple):
    """What is run, and how often."""

    device: str = "cuda"
    stages: int = 2
    microbatches: int = 6
    microbatch_size: int = 1
    length: int = 2048
    width: int = 4096
    heads: int = 32
    forward_ms: float = 12.0
    most_layers: int = 16
    rounds: int = 8
    steps: int = 5
    warm_up: int = 24
    longest_s: float = 200.0


class _Stage:
    """One stage: its layers, and the stream that they run in."""

    def __init__(self, layers: int, sizes: Sizes) -> None:
        self.stream = torch.cuda.Stream()
        self.module = torch.nn.Sequential(*(_layer(sizes) for _ in range(layers)))


class _Pass:
    """A micro-batch on one stage."""

    def __init__(self) -> None:
        self.input: Any = None
        self.output: Any = None
        self.ready: dict[str, Any] = {}  # instruction -> event at its end


class Ran(NamedTuple):
    """One step, with events that are not read yet."""

    begin_ns: int
    finished_ns: int
    end_ns: int
    calls: list[tuple[int, int]]
    """When the training thread called the begin of each instruction, and how long that took, in ns."""
    begins: list[Any]
    """Events at the begin of each instruction."""
    ends: list[Any]


class Job:
    """The pipeline.

    Args:
        sizes: How large it is.
    """

    def __init__(self, sizes: Sizes) -> None:
        self.sizes = sizes
        layers = _layers_for(sizes)
        self.layers = layers
        self.stages = [_Stage(layers, sizes) for _ in range(sizes.stages)]
        self.order = launch_order(sizes.stages, sizes.microbatches)
        self.names = [name for stage, name, _ in self.order if stage == 0]
        self._batch = torch.randn(
            sizes.microbatch_size, sizes.length, sizes.width, device=sizes.device, dtype=torch.bfloat16
        )
        torch.cuda.synchronize()

    def step(self, opt: PFOFileOptimizer | None) -> Ran:
        """Runs one step and waits for the device at its end."""
        passes = {(stage, i): _Pass() for stage, _, i in self.order}
        calls: list[tuple[int, int]] = []
        begins: list[Any] = []
        ends: list[Any] = []
        begin_ns = time.monotonic_ns()
        if opt is not None:
            with torch.cuda.stream(self.stages[0].stream):  # where its instructions run, so that marks come in order
                opt.on_step_begin()
        for stage, name, i in self.order:
            with torch.cuda.stream(self.stages[stage].stream):
                self._wait_for_neighbour(passes, stage, name, i)
                if stage == 0:
                    called_ns = time.monotonic_ns()
                    if opt is not None:
                        opt.on_instruction_begin(name)
                    calls.append((called_ns, time.monotonic_ns() - called_ns))
                    begins.append(make_event())
                    begins[-1].record()
                self._run(passes, stage, name, i)
                done = passes[stage, i].ready[name] = make_event()
                done.record()
                if stage == 0:
                    ends.append(done)
                    if opt is not None:
                        opt.on_instruction_end(name)
        if opt is not None:
            with torch.cuda.stream(self.stages[0].stream):
                opt.on_step_end()
        torch.cuda.synchronize()
        finished_ns = time.monotonic_ns()
        for part in self.stages:
            part.module.zero_grad(set_to_none=True)
        time.sleep(_SETTLE_S)
        return Ran(begin_ns, finished_ns, time.monotonic_ns(), calls, begins, ends)

    def _wait_for_neighbour(self, passes: dict[tuple[int, int], _Pass], stage: int, name: str, i: int) -> None:
        """Makes the stream wait for what it needs from another stage, as a receive does; takes it over."""
        here = passes[stage, i]
        neighbour = passes.get((stage - 1 if name == "forward" else stage + 1, i))
        if neighbour is None:
            here.input = self._batch if name == "forward" else here.input
            return
        stream = self.stages[stage].stream
        stream.wait_event(neighbour.ready[name])
        if name == "forward":
            here.input = neighbour.output.detach().requires_grad_()
            here.input.record_stream(stream)
        else:
            neighbour.input.grad.record_stream(stream)

    def _run(self, passes: dict[tuple[int, int], _Pass], stage: int, name: str, i: int) -> None:
        here = passes[stage, i]
        if name == "forward":
            here.output = self.stages[stage].module(here.input)
        elif stage == len(self.stages) - 1:
            here.output.float().square().mean().backward()
        else:
            here.output.backward(passes[stage + 1, i].input.grad)


def _layer(sizes: Sizes) -> Any:
    return torch.nn.TransformerEncoderLayer(
        sizes.width,
        sizes.heads,
        4 * sizes.width,
        dropout=0.0,
        activation="gelu",
        batch_first=True,
        norm_first=True,
        device=sizes.device,
        dtype=torch.bfloat16,
    )


def _layers_for(sizes: Sizes) -> int:
    """Returns how many layers make a forward of about `forward_ms`."""
    layer = _layer(sizes)
    batch = torch.randn(sizes.microbatch_size, sizes.length, sizes.width, device=sizes.device, dtype=torch.bfloat16)
    for _ in range(3):
        layer(batch)
    begin, end = make_event(), make_event()
    begin.record()
    for _ in range(5):
        layer(batch)
    end.record()
    torch.cuda.synchronize()
    one_ms = max(0.01, float(begin.elapsed_time(end)) / 5)
    return max(1, min(sizes.most_layers, round(sizes.forward_ms / one_ms)))


def sizes_for_memory(memory_bytes: float) -> Sizes:
    """Returns sizes that fit into the GPU's memory."""
    return Sizes() if memory_bytes > 36e9 else Sizes(length=1024, width=2048, heads=16)


# ---- the rank, once for each way of switching


def supported_clocks_mhz() -> list[int]:
    """Returns the clocks of the GPU; DeviceError if the driver does not say."""
    gpu = open_gpu(gpu_spec())
    try:
        return gpu.supported_clocks_mhz()
    finally:
        gpu.close()


def optimizer_for(mode: str, folder: Path, names: list[str], clocks_mhz: list[int]) -> PFOFileOptimizer:
    """Makes the optimizer of a job of one rank; its clock process writes down what it would set, and sets nothing."""
    from pfo_fs.models import FrequencySchedule

    plan = folder / "plan.py"
    frequencies = list(zip(names, clocks_mhz, strict=True))
    plan.write_text(format_lowtime_plan([FrequencySchedule(rank=0, frequencies=frequencies)]))
    os.environ["PFO_FS_DRY_RUN"] = "1"
    os.environ["PFO_FS_DRY_RUN_LOG"] = str(folder / f"{mode}.log")
    return PFOFileOptimizer(
        folder / mode,
        rank=0,
        world_size=1,
        dp_degree=1,
        pp_degree=1,
        tp_degree=1,
        coordination="local",
        scheduler="PointSolution",
        scheduler_args={"solution_path": str(plan)},
        job_metadata=f"gpu-proof-{mode}",
        wait_for_schedule_s=30.0,
        switching=mode,
    )


def read_changes(log: Path) -> list[tuple[float, int]]:
    """Returns (time in ns at which it acts, MHz) of each clock in the log of a dry run; 0 MHz is a reset."""
    entries = [json.loads(line) for line in log.read_text().splitlines()]
    return [(entry["t_ns"] + DRY_RUN_NS, entry["mhz"]) for entry in entries if entry["action"] in ("lock", "reset")]


# ---- all of it


class _Seen:
    """What was seen of one way of switching."""

    def __init__(self) -> None:
        self.iterations_s: list[float] = []
        self.steps: list[Step] = []
        self.ahead_ms: list[float] = []
        self.calls_us: list[float] = []
        self.uncertainty_us = 0.0

    def add(self, ran: list[Ran], clock: DeviceClock) -> None:
        self.uncertainty_us = max(self.uncertainty_us, clock.uncertainty_us)
        for one in ran:
            begins_ns = [clock.host_ns(event) for event in one.begins]
            ends_ns = [clock.host_ns(event) for event in one.ends]
            self.iterations_s.append((one.finished_ns - one.begin_ns) / 1e9)
            self.steps.append(Step(one.begin_ns, one.end_ns, begins_ns, ends_ns))
            self.calls_us += [took_ns / 1e3 for _, took_ns in one.calls]
            self.ahead_ms += [(at - called) / 1e6 for at, (called, _) in zip(begins_ns, one.calls, strict=True)]


def measure() -> Iterator[dict[str, Any]]:
    """Measures one stage alone, then two stages that share the GPU."""
    gpu_spec()
    sizes = sizes_for_memory(torch.cuda.get_device_properties(0).total_memory)
    if quick():
        sizes = sizes._replace(stages=1, rounds=5)
    for stages in dict.fromkeys((1, sizes.stages)):
        for result in measure_job(sizes._replace(stages=stages)):
            yield {"stages": stages, **result}
        torch.cuda.empty_cache()


def measure_job(sizes: Sizes) -> Iterator[dict[str, Any]]:
    """Runs all ways by turns, and compares them."""
    job = Job(sizes)
    supported = supported_clocks_mhz()
    # Without the highest one, so that the first clock of a step is another one than that between steps.
    clocks_mhz = alternating_clocks([mhz for mhz in supported if 2 * mhz >= max(supported) > mhz], len(job.names))
    seen = {mode: _Seen() for mode in (NONE, *MODES)}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name, ExitStack() as stack:
        folder = Path(name)
        os.environ["PFO_FS_RUN_DIR"] = os.environ["PFO_FS_SIM_DIR"] = name
        opts: dict[str, PFOFileOptimizer | None] = {NONE: None}
        for mode in MODES:
            opts[mode] = stack.enter_context(optimizer_for(mode, folder, job.names, clocks_mhz))
        _warm_up(job, opts)
        _run_by_turns(job, opts, seen)
        os.environ.pop("PFO_FS_DRY_RUN_LOG", None)  # its folder is removed, and the next job opens the GPU first
        changes = {mode: read_changes(folder / f"{mode}.log") for mode in MODES}
        _keep(seen, changes, sizes.stages)
        really = {mode: NONE if opt is None else opt.switching for mode, opt in opts.items()}

    def instruction_ms(wanted: str) -> float:
        steps = seen[NONE].steps
        return median(
            (ended - began) / 1e6
            for step in steps
            for name, began, ended in zip(job.names, step.begins_ns, step.ends_ns, strict=True)
            if name == wanted
        )

    yield {
        "what": "pipeline",
        "layers_per_stage": job.layers,
        "instructions": len(job.names),
        "forward_ms": instruction_ms("forward"),
        "backward_ms": instruction_ms("backward"),
        "sizes": sizes._asdict(),
    }
    without = seen[NONE].iterations_s
    for mode, found in seen.items():
        result = {
            "what": f"switching {mode}" if mode != NONE else "no marks",
            "iteration_ms": spread([took * 1e3 for took in found.iterations_s]),
            "extra_cost": extra_cost(found.iterations_s, without),
            "ahead_ms": spread(found.ahead_ms),
            "begin_call_us": spread(found.calls_us),
            "clock_uncertainty_us": found.uncertainty_us,
        }
        if mode != NONE:
            result |= boundary_errors(found.steps, clocks_mhz, changes[mode])._asdict()
            if really[mode] != mode:
                result["error"] = f"switching {mode} did not work here; these figures are of {really[mode]}"
        yield result


def _keep(seen: dict[str, _Seen], changes: dict[str, list[tuple[float, int]]], stages: int) -> None:
    """Leaves what was seen in the folder of results, to be played again."""
    folder = os.environ.get("PFO_FS_GPU_OUT")
    for mode, made in changes.items() if folder else ():
        raw = {"steps": [step._asdict() for step in seen[mode].steps], "changes": made}
        (Path(folder or "") / f"pipeline-{stages}-{mode}.json").write_text(json.dumps(raw))


def _warm_up(job: Job, opts: dict[str, PFOFileOptimizer | None]) -> None:
    """Runs steps until each rank follows its plan, and the clock process knows what instructions take."""
    for mode, opt in opts.items():
        deadline_s = time.monotonic() + _SCHEDULE_S
        while opt is not None and opt.schedule_number < 0:
            if time.monotonic() > deadline_s:
                raise RuntimeError(f"switching {mode}: no schedule came into force in {_SCHEDULE_S:.0f} s")
            job.step(opt)
            time.sleep(0.1)
        for _ in range(job.sizes.warm_up if opt is not None else 3):
            job.step(opt)


def _run_by_turns(job: Job, opts: dict[str, PFOFileOptimizer | None], seen: dict[str, _Seen]) -> None:
    until_s = time.monotonic() + job.sizes.longest_s
    order = list(opts)
    for _ in range(job.sizes.rounds):
        for mode in order:
            clock = DeviceClock()
            job.step(opts[mode])  # the first step after a change of the way counts for nothing
            ran = [job.step(opts[mode]) for _ in range(job.sizes.steps)]
            clock.anchor()
            seen[mode].add(ran, clock)
        order = order[1:] + order[:1]
        if time.monotonic() > until_s:
            return
