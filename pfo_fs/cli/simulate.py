"""`pfo-fs simulate` and `pfo-fs loads`: jobs on simulated GPUs, in virtual time."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from typer import Argument, Option

from pfo_fs.cli.terminal import (
    JsonFlag,
    NumRanksOption,
    PowerOption,
    SlowdownOption,
    err,
    print_json,
    say,
    show,
    table,
    wrong_usage,
)
from pfo_fs.reports.wording import counted, difference_text, duration_text, percent, signed_percent

if TYPE_CHECKING:
    from pfo_fs.simulator import Iteration, Play, Summary, Trace
    from pfo_fs.simulator.load_play import LoadSummary

Gpu = Literal["A100", "A40", "B300", "RTX", "H100"]
PipelineSchedule = Literal["1f1b", "gpipe", "interleaved", "zb-h1", "zb-v", "early-recomputation"]

Node = Literal["kind", "none", "A100 node", "H100 node", "launch"]
_BARS = TextColumn("iteration"), BarColumn(bar_width=24), MofNCompleteColumn(), TimeElapsedColumn()

_TRACE = (
    "Instead: a job whose durations are those of this CSV file (columns step, dp_rank, stage, instruction, "
    "micro_batch, time_s), as `pfo-fs trace -o FILE.csv` writes it."
)
_LOADS = (
    "With --trace: clocks from loads, one per pipeline and step. trace: a load is what durations show; FILE: a CSV "
    "file with columns step, dp_rank, micro_batch, load."
)
_NODE = (
    "What clock changes cost. kind: a clock acts 10 ms after its request; launch: it is only requested when "
    "its instruction begins, as where clocks cannot follow the device."
)
_LENGTHS = "CSV with columns step, dp_rank, micro_batch, length: a row for each sequence."
_TOKENS = 16_777_216


def simulate(
    num_microbatches: Annotated[int | None, Option(help="Micro-batches of one iteration.", min=1)] = None,
    trace: Annotated[Path | None, Option(help=_TRACE)] = None,
    loads: Annotated[str | None, Option(metavar="trace|FILE", help=_LOADS)] = None,
    no_pipeline: Annotated[bool, Option("--no-pipeline", help="With --loads: a data-parallel job.")] = False,
    gpu: Annotated[Gpu, Option(help="Kind of the simulated GPUs, as published.", case_sensitive=False)] = "A100",
    stages: Annotated[int, Option(help="Stages of a pipeline; of a trace: its own.", min=1, max=4096)] = 8,
    schedule: Annotated[PipelineSchedule, Option(help="Order of the instructions of a pipeline.")] = "1f1b",
    num_ranks: NumRanksOption = None,
    pipelines: Annotated[int | None, Option(help="Data-parallel degree; of a trace: all.", min=1, max=4096)] = None,
    iterations: Annotated[int, Option(help="Number of iterations to simulate.", min=1, max=1_000_000)] = 150,
    slowdown: SlowdownOption = None,
    power: PowerOption = None,
    node: Annotated[Node, Option(help=_NODE)] = "kind",
    seed: Annotated[int, Option(help="Seed of the noise.", min=0)] = 0,
    shared_dir: Annotated[Path | None, Option("--shared-dir", "-d", help="Keep the job in this directory.")] = None,
    json_: JsonFlag = False,
) -> None:
    """Simulate a whole job in virtual time, to find what profiling costs and what a plan saves.

    Scheduler, planner and shared directory are real; the GPUs are simulated.
    The scheduler has no profile at first: it profiles, plans, checks the plan, and measures again what changes.
    """
    from pfo_fs.device.simulated.physics import gpu_model, node_physics
    from pfo_fs.planner import make_pipeline
    from pfo_fs.scheduler import check_scheduler_args, load_scheduler
    from pfo_fs.settings import load_settings
    from pfo_fs.simulator import ModelTruth, Play, SimulatedJob, read_trace, summarize
    from pfo_fs.simulator.load_play import LoadPlay, last_stage, loads_of
    from pfo_fs.simulator.nodes import NodeSettings

    asked = {name: value for name, value in (("slowdown", slowdown), ("power", power)) if value is not None}
    check_scheduler_args(load_scheduler("ParetoScheduler"), asked)
    for is_wrong, said in (
        (
            (num_microbatches is None) == (trace is None),
            "give --num-microbatches for a job that you describe, or --trace for one that was measured",
        ),
        (
            loads is not None and (trace is None or shared_dir or asked),
            "--loads needs --trace, and does not go with --slowdown, --power or --shared-dir",
        ),
        (no_pipeline and loads is None, "--no-pipeline needs --loads"),
    ):
        if is_wrong:
            wrong_usage(said)
    nodes = None if node == "launch" else NodeSettings(node_physics(node))
    kind: str = gpu
    if trace is not None:
        traced = read_trace(trace, schedule, num_ranks=num_ranks, pipelines=pipelines)
        say(_about(traced), to=err)
        traced = last_stage(traced) if no_pipeline else traced
        job = traced.job(gpu_model(gpu), nodes)
        kind = trace.name.split(".")[0]
    else:
        assert num_microbatches is not None
        pipeline = make_pipeline(schedule, stages, num_microbatches, num_ranks=num_ranks)
        if stages == 1 and not asked:
            say("One stage waits for no other: a plan saves nothing without --slowdown or --power.", to=err)
        job = SimulatedJob("", pipeline, ModelTruth(gpu_model(gpu), stages), nodes=nodes, pipelines=pipelines or 1)
    cluster = job.cluster(seed)
    if loads is not None:
        replay = LoadPlay(traced, cluster, loads_of(traced, loads), seed)
        with Progress(*_BARS, console=err, transient=True, disable=json_ or not err.is_terminal) as progress:
            of_loads = replay.run(iterations, lambda total: progress.track(range(total), description=""))
        if json_:
            print_json({"summary": of_loads._asdict()})
        else:
            _show_loads(of_loads, "Clocks from loads", "all steps of the trace, with what is known at the end")
        return
    with ExitStack() as stack:
        root = shared_dir or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pfo-fs-simulate-"))) / "pfo"
        settings = load_settings(of_job=True, scheduler="ParetoScheduler", scheduler_args=asked, profile_steps=5)
        play = Play(cluster, root, settings, metadata=f"simulated-{kind}")
        played = _play(play, iterations, quiet=json_)
        summary = summarize(play, played)
        play.end()
    if json_:
        rows = [iteration._asdict() for iteration in played]
        print_json({"job_id": play.folder.job_id, "summary": summary.as_json(), "iterations": rows})
        return
    show(_table(summary))
    say(summary.status_text)
    if shared_dir is not None:
        say(f"the job is kept in {play.folder.location}")


def _about(trace: Trace) -> str:
    """Returns a text about the content of a trace."""
    size = f"{trace.pipeline.num_stages} stages x {trace.pipeline.num_microbatches} micro-batches"
    steps, pipelines = counted(len(trace.steps), "step"), counted(len(trace.dp_ranks), "pipeline")
    return f"trace {trace.name}: {steps} of {pipelines} of {size}"


def _play(play: Play, iterations: int, *, quiet: bool) -> list[Iteration]:
    """Simulates the job, and prints a line for each new schedule or status."""
    played: list[Iteration] = []
    with Progress(*_BARS, console=err, transient=True, disable=quiet or not err.is_terminal) as progress:
        task = progress.add_task("", total=iterations)
        number, status_text = -2, ""
        for iteration in play.run(iterations):
            played.append(iteration)
            progress.advance(task)
            if not quiet and (iteration.number, iteration.status_text) != (number, status_text):
                number, status_text = iteration.number, iteration.status_text
                line = (
                    f"{iteration.step:5d}  schedule {number:<3d} {iteration.time_s:7.3f} s {iteration.energy_j:9.0f} J"
                )
                progress.console.print(f"{line}  {escape(status_text)}", highlight=False, soft_wrap=True)
    return played


def _table(summary: Summary) -> Table:
    shown = table("", "time s", "slower", "energy J", "saved", title="Time and energy, without measurement noise")
    shown.add_row("max clocks", f"{summary.full_time_s:.4f}", "", f"{summary.full_energy_j:,.0f}", "")
    if summary.deployed_at is None:
        shown.caption = (
            f"no plan yet after {summary.iterations} iterations; very short ones need up to 70: give more --iterations"
        )
        return shown
    shown.add_row(
        "[bold]plan[/]",
        f"{summary.plan_time_s:.4f}",
        signed_percent(summary.slowdown, 2),
        f"{summary.plan_energy_j:,.0f}",
        f"[bold]{percent(summary.energy_saved)}[/]",
    )
    shown.add_row(
        "whole run",
        f"{summary.time_s:,.1f}",
        signed_percent(summary.run_late, 2),
        f"{summary.energy_j:,.0f}",
        percent(summary.run_saved),
    )
    lines = [
        f"first plan at iteration {summary.deployed_at}, {summary.schedules} schedules in all; profiling, against max "
        f"clocks: {difference_text(summary.overhead_s, duration_text)}"
    ]
    if summary.worst_step_late > summary.slowdown:
        lines.append(f"under the plan, the worst step takes {percent(summary.worst_step_late, 2)} longer")
    shown.caption = "\n".join(lines)
    return shown


# ---- clocks from loads in a data-parallel job


def loads(
    lengths: Annotated[Path | None, Argument(help=_LENGTHS)] = None,
    ranks: Annotated[int, Option(min=2, max=4096, help="Without a file: number of data-parallel ranks.")] = 16,
    micro_batches: Annotated[int, Option(min=1, max=1024, help="Without a file: of a rank in a step.")] = 4,
    context: Annotated[int, Option(min=16, max=_TOKENS, help="Without a file: tokens of a micro-batch.")] = 32_768,
    median: Annotated[int, Option(min=1, max=_TOKENS, help="Without a file: median length of documents.")] = 1500,
    sigma: Annotated[float, Option(min=0.0, max=5.0, help="Without a file: spread of their logarithm.")] = 1.4,
    model: Annotated[Literal["1B", "8B", "70B"], Option(help="Size of the model: how much attention weighs.")] = "8B",
    gpu: Annotated[str, Option(help="Model of GPU: A100, A40, B300, RTX or H100.")] = "A100",
    iterations: Annotated[int, Option(min=1, max=100_000, help="Number of steps; of a file, all at most.")] = 200,
    json_: JsonFlag = False,
) -> None:
    """Show what LoadClocks would save where ranks get sequences of unequal lengths, from a cold start.

    Plays a data-parallel job on simulated GPUs, with the code that decides in real ones. Without a file, documents of
    drawn lengths are packed into micro-batches.
    """
    from pfo_fs.device.simulated.physics import gpu_model
    from pfo_fs.simulator.uneven_job import MODELS, drawn_steps, play, read_lengths

    if lengths is not None:
        read = read_lengths(lengths)
        iterations = min(iterations, len(read))
        step_of = read.__getitem__ if len(read) >= 10 else lambda number: read[number % len(read)]
        ranks = len(read[0])
    else:
        step_of = drawn_steps(ranks, micro_batches, context, median, sigma, seed=0)
    with Progress(console=err, transient=True, disable=json_ or not err.is_terminal) as progress:
        steps = progress.track(range(iterations), description="")
        summary = play(step_of, gpu_model(gpu), MODELS[model], steps=steps)
    if json_:
        print_json({"summary": summary._asdict()})
        return
    _show_loads(summary, f"Clocks from loads, {ranks} ranks", "its second half, after learning")


def _show_loads(summary: LoadSummary, title: str, plan: str) -> None:
    """Shows what balanced batches would save, then what clocks from loads have saved; `plan`: the second row's name."""
    from pfo_fs.loads_known import LEAST_BALANCED

    if summary.balanced >= LEAST_BALANCED:
        say(f"Batches of equal work would make steps {percent(summary.balanced, 0)} shorter: do that first.")
    begins = summary.begins_at
    first = "no step had a lower clock" if begins is None else f"first lower clock in step {begins}"
    worst = f"no step takes more than {percent(summary.worst_step_late, 2)} longer than at max clocks"
    shown = table("against max clocks on the same data", "slower", "saved", title=title, caption=f"{first}; {worst}")
    run_late, plan_late = signed_percent(summary.run_late, 3), signed_percent(summary.plan_late, 3)
    shown.add_row(f"whole run, {summary.iterations} steps", run_late, percent(summary.run_saved))
    shown.add_row(plan, plan_late, f"[bold]{percent(summary.plan_saved)}[/]")
    show(shown)
    say(summary.status_text)
