"""`pfo-fs simulate`: runs the closed loop on a simulated cluster, in virtual time."""

from __future__ import annotations

import re
import tempfile
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from pfo_fs.cli.terminal import JsonFlag, err, plausible_slowdown, print_json, say, show, table, wrong_usage
from pfo_fs.reports.wording import difference_text, duration_text, less_or_more, percent, signed_percent

if TYPE_CHECKING:
    from pfo_fs.simulator import Iteration, Play, Summary, Trace, Truth
    from pfo_fs.simulator.load_play import LoadPlay
    from pfo_fs.simulator.nodes import NodeSettings

Gpu = Literal["A100", "A40"]
PipelineSchedule = Literal["1f1b", "gpipe", "interleaved", "zb-h1", "zb-v", "early-recomputation"]

Node = Literal["kind", "none", "A100 node", "H100 node", "launch"]
_BARS = TextColumn("iteration"), BarColumn(bar_width=24), MofNCompleteColumn(), TimeElapsedColumn()
_STRAGGLER = re.compile(r"(?P<slowdown>\d+(?:\.\d+)?)@(?P<first>\d+):(?P<last>\d+)(?:/(?P<pipeline>\d+))?")


def simulate(
    num_microbatches: Annotated[int | None, typer.Option(help="Micro-batches of one iteration.", min=1)] = None,
    generated: Annotated[
        int | None,
        typer.Option(help="Instead of a job that you describe: the one that is drawn at random from this seed.", min=0),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(
            help="Instead of a job that you describe: one whose durations are those of this CSV file (.csv or .csv.gz; "
            "columns step, dp_rank, stage, instruction, micro_batch, time_s), as `pfo-fs trace -o FILE.csv` writes it."
        ),
    ] = None,
    loads: Annotated[
        str | None,
        typer.Option(
            metavar="trace|shuffled|FILE",
            help="With --trace: clocks from loads, one per pipeline and step, in place of the closed loop. trace: a "
            "micro-batch's load is one number that its durations show; shuffled: loads that say nothing; FILE: a CSV "
            "file with columns step, dp_rank, micro_batch, load.",
        ),
    ] = None,
    profile: Annotated[Path | None, typer.Option(help="Profile CSV: simulate GPUs that behave like it.")] = None,
    gpu: Annotated[
        Gpu, typer.Option(help="Simulate GPUs fitted to published profiles of this kind.", case_sensitive=False)
    ] = "A100",
    stages: Annotated[
        int, typer.Option(help="Stages of a pipeline; with --profile or --trace, those of the file.", min=1, max=4096)
    ] = 8,
    schedule: Annotated[PipelineSchedule, typer.Option(help="Order of the instructions of a pipeline.")] = "1f1b",
    num_ranks: Annotated[
        int | None, typer.Option(help="Ranks of the pipeline, if each holds several stages (interleaved).")
    ] = None,
    pipelines: Annotated[
        int | None,
        typer.Option(
            help="Number of pipelines (data-parallel degree); default: 1, with --trace all of the trace.",
            min=1,
            max=4096,
        ),
    ] = None,
    iterations: Annotated[int, typer.Option(help="Number of iterations to simulate.", min=1, max=1_000_000)] = 150,
    straggler: Annotated[
        list[str] | None,
        typer.Option(
            help="1.2@500:900 makes a pipeline take 1.2 times as long in iterations 500 to 900; add /3 for pipeline 3."
        ),
    ] = None,
    slowdown: Annotated[
        float | None,
        typer.Option(
            callback=plausible_slowdown, help="How many times as long an iteration may take as at max clocks."
        ),
    ] = None,
    power: Annotated[float | None, typer.Option(help="Highest average power in W, all GPUs together.")] = None,
    p2p_power: Annotated[float | None, typer.Option(help="With --profile: power in W of a GPU that waits.")] = None,
    node: Annotated[
        Node,
        typer.Option(
            help="What clock changes cost: on a kind one, a clock acts 10 ms after its request; launch: it is only "
            "requested when its instruction begins, as where clocks cannot follow the device."
        ),
    ] = "kind",
    gpus_per_stage: Annotated[
        int, typer.Option(help="GPUs that share a stage (tensor parallelism).", min=1, max=64)
    ] = 1,
    seed: Annotated[int, typer.Option(help="Seed of the noise.", min=0)] = 0,
    quiet_cluster: Annotated[bool, typer.Option("--no-noise", help="Simulate no jitter and no warming up.")] = False,
    shared_dir: Annotated[
        Path | None,
        typer.Option("--shared-dir", "-d", help="Keep the job in this directory, for `pfo-fs report` and `trace`."),
    ] = None,
    json_: JsonFlag = False,
) -> None:
    """Simulate a whole job in virtual time, to find what profiling costs and what a plan saves.

    Scheduler, planner and shared directory are real; the GPUs are simulated.
    The scheduler has no profile at first: it profiles, plans, checks the plan, and follows stragglers.
    """
    from pfo_fs.device.simulated.physics import gpu_model
    from pfo_fs.planner import make_pipeline
    from pfo_fs.scheduler import check_scheduler_args, load_scheduler
    from pfo_fs.settings import load_settings
    from pfo_fs.simulator import QUIET, Nuisances, Play, SimulatedJob, generated_job, read_trace, summarize
    from pfo_fs.simulator.load_play import LoadPlay, loads_of

    asked = {name: value for name, value in (("slowdown", slowdown), ("power", power)) if value is not None}
    check_scheduler_args(load_scheduler("ParetoScheduler"), asked)
    if p2p_power is not None and profile is None:
        wrong_usage("--p2p-power needs --profile; the simulated A100 and A40 have their own")
    if sum(each is not None for each in (num_microbatches, generated, trace)) != 1:
        wrong_usage(
            "give --num-microbatches for a job that you describe, --generated for one drawn at random, or --trace for "
            "one that was measured"
        )
    if loads is not None and (trace is None or straggler or shared_dir or asked):
        wrong_usage("--loads needs --trace, and does not go with --slowdown, --power, --straggler or --shared-dir")
    noise = QUIET if quiet_cluster else Nuisances()
    if generated is not None:
        job = generated_job(generated)
        say(job.name, to=err)
    elif trace is not None:
        if profile is not None:
            wrong_usage("--trace does not go with --profile: choose the GPUs by --gpu")
        traced = read_trace(trace, schedule, num_ranks=num_ranks, pipelines=pipelines)
        say(_about(traced), to=err)
        nodes = _nodes(node, gpus_per_stage)
        calm = replace(noise, time_jitter=0.0)
        if loads is not None:
            cluster = traced.job(gpu_model(gpu), nodes, calm).cluster(seed)
            _with_loads(LoadPlay(traced, cluster, loads_of(traced, loads, seed), seed), iterations, json_)
            return
        job = traced.job(gpu_model(gpu), nodes, calm)
    else:
        assert num_microbatches is not None
        truth, num_stages = _truth(profile, gpu, stages, p2p_power)
        pipeline = make_pipeline(schedule, num_stages, num_microbatches, num_ranks=num_ranks)
        nodes = _nodes(node, gpus_per_stage)
        job = SimulatedJob("", pipeline, truth, noise, nodes, pipelines or 1)
    if straggler and job.pipelines == 1:
        wrong_usage("--straggler needs another pipeline that waits for it: give --pipelines 2 or more")
    cluster = job.cluster(seed, [_episode(text, job.pipelines) for text in straggler or ()])
    with ExitStack() as stack:
        root = shared_dir or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pfo-fs-simulate-"))) / "pfo"
        settings = load_settings(of_job=True, scheduler="ParetoScheduler", scheduler_args=asked, profile_steps=5)
        play = Play(cluster, root, settings, metadata=f"simulated-{_kind(profile or trace, gpu, generated)}")
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


def _with_loads(play: LoadPlay, iterations: int, as_json: bool) -> None:
    """Plays a trace with clocks from loads, and shows what they save."""
    from pfo_fs.cli.loads import show_summary

    with Progress(*_BARS, console=err, transient=True, disable=as_json or not err.is_terminal) as progress:
        summary = play.run(iterations, lambda total: progress.track(range(total), description=""))
    if as_json:
        print_json({"summary": summary.as_json()})
        return
    show_summary(summary, "Clocks from loads", "all steps of the trace, with what is known at the end")


def _kind(file: Path | None, gpu: str, generated: int | None) -> str:
    if generated is not None:
        return f"generated-{generated}"
    return file.name.split(".")[0] if file else gpu


def _about(trace: Trace) -> str:
    """Returns what a trace holds, and what of it is not simulated."""
    size = f"{trace.pipeline.num_stages} stages x {trace.pipeline.num_microbatches} micro-batches"
    text = f"trace {trace.name}: {len(trace.steps)} steps of {len(trace.dp_ranks)} pipelines of {size}"
    return text + (f"; {trace.incomplete} steps were incomplete and are left out" if trace.incomplete else "")


def _truth(profile: Path | None, gpu: str, stages: int, p2p_power: float | None) -> tuple[Truth, int]:
    from pfo_fs.device.simulated.physics import gpu_model
    from pfo_fs.planner import blocking_power_w, read_profile
    from pfo_fs.simulator import ModelTruth, ProfileTruth

    if profile is None:
        return ModelTruth(gpu_model(gpu), stages), stages
    measured = read_profile(profile)
    power_w = p2p_power if p2p_power is not None else blocking_power_w(gpu)
    return ProfileTruth(measured, power_w), measured.num_stages


def _nodes(node: Node, gpus_per_stage: int) -> NodeSettings | None:
    from pfo_fs.device.simulated.node_physics import node_physics
    from pfo_fs.simulator.nodes import NodeSettings

    if node == "launch":
        if gpus_per_stage > 1:
            wrong_usage("--gpus-per-stage does not go with --node launch")
        return None
    return NodeSettings(node_physics(node), gpus_per_stage)


def _episode(text: str, pipelines: int) -> Any:
    from pfo_fs.simulator import Episode

    match = _STRAGGLER.fullmatch(text)
    if match is None:
        wrong_usage(f"--straggler {text!r}: write 1.2@500:900, or 1.2@500:900/3 for pipeline 3")
    slowdown, first, last = float(match["slowdown"]), int(match["first"]), int(match["last"])
    pipeline = int(match["pipeline"] or pipelines - 1)
    if not (slowdown >= 1 and first < last and pipeline < pipelines):
        wrong_usage(
            f"--straggler {text}: the slowdown must be 1 or more, the last iteration after the first, and the pipeline "
            f"below {pipelines}"
        )
    return Episode(slowdown, first, last, pipeline)


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
    shown = table("", "time s", "slower", "energy J", "saved", title="Time and energy, noise aside")
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
        f"first plan at iteration {summary.deployed_at}, {summary.schedules} schedules in all; profiling took "
        f"{difference_text(summary.overhead_s, duration_text)} than at max clocks"
    ]
    for episode in summary.episodes:
        followed = "not followed" if episode.followed_after is None else f"followed after {episode.followed_after}"
        back = "not back yet" if episode.back_after is None else f"back after {episode.back_after} iterations"
        saved = "" if episode.saved is None else f", {less_or_more(episode.saved)} energy than without following it"
        lines.append(
            f"pipeline {episode.pipeline}, {episode.slowdown:g} times as slow from {episode.first} to {episode.last}: "
            f"{followed}, {back}{saved}"
        )
    if summary.worst_step_late > summary.slowdown:
        lines.append(f"under the plan, the worst step takes {percent(summary.worst_step_late, 2)} longer")
    shown.caption = "\n".join(lines)
    return shown
