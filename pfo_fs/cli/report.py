"""`pfo-fs report` and `pfo-fs trace`: a page and a trace of what a job did."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from pfo_fs.cli.jobs import Job, find_job
from pfo_fs.cli.terminal import (
    JsonFlag,
    SharedDirOption,
    err,
    open_directory,
    print_json,
    say,
    show,
    table,
    wrong_usage,
)
from pfo_fs.reports.wording import signed_percent

if TYPE_CHECKING:
    from pfo_fs.reports.directory import JobRow
    from pfo_fs.store import JobFolder

_SUMMED = ("jobs", "energy_kwh", "saved_kwh", "jobs_without_figures")


def report(
    job: Annotated[
        str | None,
        typer.Argument(
            help="Job id or a part of it, the path of the job's folder, or 'latest'. Without it: a table of all jobs "
            "of the directory, with kWh by user and day."
        ),
    ] = None,
    shared_dir: SharedDirOption = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The HTML file to write; default: report.html.")
    ] = None,
    trace_csv: Annotated[
        Path | None,
        typer.Option(
            help="In place of the page, write the durations that were measured at max clocks into this CSV file (.csv "
            "or .csv.gz), for `pfo-fs simulate --trace`."
        ),
    ] = None,
    json_: JsonFlag = False,
) -> None:
    """Write a page of HTML about a job, running or ended: savings, pipeline, clocks, stragglers, profile."""
    from pfo_fs.reports.atomic_output import output_file
    from pfo_fs.reports.collect import collect_job
    from pfo_fs.reports.page import render_page

    if job is None:
        if shared_dir is None:
            wrong_usage("name a job, or a directory by -d (--shared-dir, PFO_FS_SHARED_DIR) for all of its jobs")
        if output is not None or trace_csv is not None:
            wrong_usage("a page is about one job: name it. All jobs are printed, as a table or as --json")
        _report_directory(shared_dir, json_)
        return
    if trace_csv is not None:
        if output is not None:
            wrong_usage("--trace-csv writes no page: leave out --output")
        _write_trace_csv(find_job(job, shared_dir, archived=True), trace_csv, json_)
        return
    output = output or Path("report.html")
    folder = find_job(job, shared_dir, archived=True)
    with err.status("reading the job ..."):
        page = render_page(collect_job(folder))
    with output_file(output) as file:
        file.write(page)
    if json_:
        print_json({"file": str(output), "job_id": folder.job_id})
        return
    say(f"written: {output} (job {folder.job_id})")


def _write_trace_csv(folder: JobFolder, path: Path, as_json: bool) -> None:
    from pfo_fs.reports.collect import collect_job
    from pfo_fs.reports.trace import write_trace_csv

    with err.status("reading the job ..."):
        counts = write_trace_csv(collect_job(folder), path)
    if as_json:
        print_json({"file": str(path), "job_id": folder.job_id, **counts})
        return
    text = (
        f"written: {path}: {counts['rows']:,} instructions of {counts['pipelines']} pipelines in {counts['steps']} "
        f"steps that were measured at max clocks; replay them by `pfo-fs simulate --trace {path}`"
    )
    say(text)


def _report_directory(shared_dir: Path, as_json: bool) -> None:
    from dataclasses import asdict

    from pfo_fs.reports.directory import collect_directory, sums

    shared = open_directory(shared_dir)
    with err.status("reading jobs ...") as line:
        rows = collect_directory(shared, line.update)
    users, days = sums(rows, lambda row: row.user), sums(rows, lambda row: row.day)
    if as_json:
        print_json({"jobs": [asdict(row) for row in rows], "users": users, "days": days})
        return
    if not rows:
        say(f"{shared_dir} has no jobs")
        return
    show(_job_table(rows))
    show(_sum_table("user", users))
    show(_sum_table("day", days))


def _job_table(rows: list[JobRow]) -> Table:
    columns = ("job", "user", "state", "iterations", "hours", "kWh", "kWh saved", "time", "remark")
    title = "Jobs; saved: against max clocks, profiling included"
    shown = table(*columns, left=("user", "state", "remark"), title=title)
    for row in rows:
        shown.add_row(
            *map(Text, (row.job_id, row.user, row.state, f"{row.iterations:,}", f"{row.hours:,.2f}")),
            _kwh(row.energy_kwh),
            _kwh(row.saved_kwh),
            "–" if row.more_time is None else signed_percent(row.more_time),
            Text(row.problem),
        )
    return shown


def _sum_table(what: str, groups: dict[str, dict[str, Any]]) -> Table:
    shown = table(what, "jobs", "kWh", "kWh saved", "jobs whose saving is not known")
    for name, group in [*groups.items(), ("all", {key: sum(g[key] for g in groups.values()) for key in _SUMMED})]:
        unknown = str(group["jobs_without_figures"])
        shown.add_row(Text(name), str(group["jobs"]), _kwh(group["energy_kwh"]), _kwh(group["saved_kwh"]), unknown)
    return shown


def _kwh(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.3f}".replace("-0.000", "0.000").replace("-", "−")


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
    full: Annotated[bool, typer.Option("--full", help="Write all measured iterations, not only five.")] = False,
    json_: JsonFlag = False,
) -> None:
    """Write measured iterations of a job as a trace for ui.perfetto.dev: instructions, clocks, power of each rank."""
    from pfo_fs.reports.collect import collect_job
    from pfo_fs.reports.trace import window_to_trace, write_trace

    data = collect_job(find_job(job, shared_dir, archived=True))
    window = window_to_trace(data, number)
    counts = write_trace(data, window, output, pipeline, most=None if full else 5)
    if json_:
        print_json({"file": str(output), "schedule": window.number, **counts})
        return
    say(
        f"written: {output}: {counts['iterations']} iterations of {counts['ranks']} ranks under schedule "
        f"{window.number}, {counts['slices']:,} instructions; open it at ui.perfetto.dev. Begins are reconstructed "
        "from measured durations."
    )
