"""`pfo-fs report` and `pfo-fs trace`: a page and a trace of what a job did."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from pfo_fs.cli.jobs import Job, SharedDirOption, find_job
from pfo_fs.cli.terminal import JsonFlag, err, fail, out
from pfo_fs.reports.atomic_output import output_file


def report(
    job: Job,
    shared_dir: SharedDirOption = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="The HTML file to write.")] = Path("report.html"),
    points: Annotated[
        int | None,
        typer.Option(
            help="Plan a frontier of this many points that counts the time of clock changes (slow).", min=2, max=1000
        ),
    ] = None,
) -> None:
    """Write a page of HTML about a job, running or ended: savings, frontier, pipeline, clocks, stragglers, profile."""
    from pfo_fs.reports import collect_job, render_page

    folder = find_job(job, shared_dir, archived=True)
    with err.status("reading the job and planning its frontier ..."):
        page = render_page(collect_job(folder), points)
    try:
        with output_file(output) as file:
            file.write(page)
    except OSError as error:
        fail(f"{output}: the page cannot be written: {error.strerror}")
    out.print(escape(f"written: {output} (job {folder.job_id})"), highlight=False, soft_wrap=True)


def trace(
    job: Job,
    shared_dir: SharedDirOption = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="The JSON file to write.")] = Path("trace.json"),
    number: Annotated[
        int | None, typer.Option(help="Schedule whose measured iterations are written; default: the newest.", min=0)
    ] = None,
    pipeline: Annotated[
        int | None, typer.Option(help="Write only this pipeline (data-parallel rank); default: all.", min=0)
    ] = None,
    json_: JsonFlag = False,
) -> None:
    """Write measured iterations of a job as a trace for ui.perfetto.dev: instructions, clocks, power of each rank."""
    from pfo_fs.reports import collect_job, window_to_trace, write_trace

    data = collect_job(find_job(job, shared_dir, archived=True))
    window = window_to_trace(data, number)
    counts = write_trace(data, window, output, pipeline)
    if json_:
        print(json.dumps({"file": str(output), "schedule": window.number, **counts}))  # noqa: T201
        return
    out.print(
        escape(
            f"written: {output}: {counts['iterations']} iterations of {counts['ranks']} ranks under schedule "
            f"{window.number}, {counts['slices']:,} instructions; open it at ui.perfetto.dev. Begins are reconstructed "
            "from measured durations."
        ),
        highlight=False,
        soft_wrap=True,
    )
