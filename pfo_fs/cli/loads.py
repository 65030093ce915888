"""`pfo-fs loads`: what clocks from loads would save in a data-parallel job, from the lengths of its sequences."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.progress import Progress

from pfo_fs.cli.terminal import JsonFlag, err, print_json, say, show, table, wrong_usage
from pfo_fs.loads.state import LEAST_BALANCED
from pfo_fs.reports.wording import percent, signed_percent

if TYPE_CHECKING:
    from pfo_fs.simulator.load_play import LoadSummary


def loads(
    lengths: Annotated[
        Path | None,
        typer.Argument(help="CSV with columns step, dp_rank, micro_batch, length: a row for each sequence."),
    ] = None,
    ranks: Annotated[int, typer.Option(min=2, max=4096, help="Without a file: number of data-parallel ranks.")] = 16,
    micro_batches: Annotated[int, typer.Option(min=1, max=1024, help="Without a file: of a rank in a step.")] = 4,
    context: Annotated[
        int, typer.Option(min=16, max=16_777_216, help="Without a file: tokens of a micro-batch, filled by documents.")
    ] = 32_768,
    median: Annotated[
        int, typer.Option(min=1, max=16_777_216, help="Without a file: median length of the documents, log-normal.")
    ] = 1500,
    sigma: Annotated[float, typer.Option(min=0.0, max=5.0, help="Without a file: spread of their logarithm.")] = 1.4,
    model: Annotated[
        Literal["1B", "8B", "70B"], typer.Option(help="Size of the model: how much attention weighs.")
    ] = "8B",
    step_seconds: Annotated[float, typer.Option(min=0.05, max=3600.0, help="Time of a step.")] = 2.0,
    noise: Annotated[
        float, typer.Option(min=0.0, max=0.5, help="Scatter of a rank's time that no load explains; 0.01 for 1 %.")
    ] = 0.01,
    gpu: Annotated[str, typer.Option(help="Model of GPU: A100 or A40.")] = "A100",
    iterations: Annotated[int, typer.Option(min=1, max=100_000, help="Number of steps; of a file, all at most.")] = 200,
    seed: Annotated[int, typer.Option(min=0, help="Other documents, other noise.")] = 0,
    json_: JsonFlag = False,
) -> None:
    """Show what LoadClocks would save where ranks get sequences of unequal lengths, from a cold start.

    Plays a data-parallel job on simulated GPUs, with the code that decides in real ones. Without a file, documents of
    drawn lengths are packed into micro-batches.
    """
    from pfo_fs.device.simulated.physics import gpu_model
    from pfo_fs.simulator.uneven_job import MODELS, drawn_steps, play, read_lengths

    if not step_seconds > 0 or not noise >= 0:
        wrong_usage("--step-seconds and --noise must be numbers")
    if lengths is not None:
        read = read_lengths(lengths)
        iterations = min(iterations, len(read))
        step_of = read.__getitem__ if len(read) >= 10 else lambda number: read[number % len(read)]
        ranks = len(read[0])
    else:
        step_of = drawn_steps(ranks, micro_batches, context, median, sigma, seed)
    with Progress(console=err, transient=True, disable=json_ or not err.is_terminal) as progress:
        steps = progress.track(range(iterations), description="")
        summary, _ = play(
            step_of, gpu_model(gpu), MODELS[model], step_s=step_seconds, noise=noise, steps=steps, seed=seed
        )
    if json_:
        print_json({"summary": summary.as_json()})
        return
    show_summary(summary, f"Clocks from loads, {ranks} ranks", "its second half, after learning")


def show_summary(summary: LoadSummary, title: str, plan: str) -> None:
    """Shows what clocks from loads have saved, and first what balanced batches would.

    Args:
        summary: The run.
        title: Of the table.
        plan: What the summary's plan stands for.
    """
    if summary.balanced >= LEAST_BALANCED:
        say(f"Batches of equal work would make steps {percent(summary.balanced, 0)} shorter: that comes first.")
    begins = summary.begins_at
    first = "no step had a lower clock" if begins is None else f"first lower clock in step {begins}"
    worst = f"no step takes more than {percent(summary.worst_step_late, 2)} longer than at max clocks"
    shown = table("against max clocks on the same data", "slower", "saved", title=title, caption=f"{first}; {worst}")
    run_late, plan_late = signed_percent(summary.run_late, 3), signed_percent(summary.plan_late, 3)
    shown.add_row(f"whole run, {summary.iterations} steps", run_late, percent(summary.run_saved))
    shown.add_row(plan, plan_late, f"[bold]{percent(summary.plan_saved)}[/]")
    show(shown)
    say(summary.status_text)
