"""What has happened: `pfo-fs status`, `pfo-fs report` and `pfo-fs trace`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rich.text import Text
from typer import Argument, Option

from pfo_fs.cli.jobs import JOB_HELP, Job, find_job
from pfo_fs.cli.terminal import (
    JsonFlag,
    SharedDirOption,
    err,
    open_directory,
    out,
    print_json,
    say,
    show,
    table,
    the_directory,
    wrong_usage,
)
from pfo_fs.reports.wording import counted, signed_percent

if TYPE_CHECKING:
    from rich.table import Table

    from pfo_fs.reports.directory import JobRow, Sums


_JOB_OR_ALL = f"{JOB_HELP} Without it, or with only the directory: a table of all jobs, with kWh by user and day."


def status(
    shared_dir: SharedDirOption = None,
    verbose: Annotated[bool, Option("--verbose", "-v", help="With ranks, schedules and what they say.")] = False,
    json_: JsonFlag = False,
) -> None:
    """Show the daemon and all jobs: state, what is saved, clocks, energy, problems."""
    from pfo_fs.reports.status import collect_status, render

    shared = open_directory(the_directory(shared_dir), in_use=True)
    with err.status("reading the directory ..."):
        state = collect_status(shared)
    if json_:
        print_json(state.model_dump(mode="json"))
        return
    # A pipe gets one record per line, however long.
    out.print(render(state, verbose), soft_wrap=not out.is_terminal)


def report(
    job: Annotated[str | None, Argument(help=_JOB_OR_ALL)] = None,
    shared_dir: SharedDirOption = None,
    output: Annotated[Path | None, Option("--output", "-o", help="The HTML file; default: report.html.")] = None,
    price: Annotated[float | None, Option(help="What a kWh costs, in any currency.", min=0)] = None,
    carbon: Annotated[float | None, Option(help="CO2 of a kWh, in g.", min=0)] = None,
    json_: JsonFlag = False,
) -> None:
    """Write a page of HTML about a job: savings, pipeline, clocks. With --json, print figures; -o adds the page."""
    from pfo_fs.reports.atomic_output import output_file
    from pfo_fs.reports.collect import collect_job
    from pfo_fs.reports.directory import job_row
    from pfo_fs.reports.page import PAGE_HAS, render_page

    per_kwh = {"cost {}": price, "{} kg CO2": None if carbon is None else carbon / 1000}
    rates = {unit: rate for unit, rate in per_kwh.items() if rate is not None}
    if job is None:
        if output is not None:
            wrong_usage("a page is about one job: name it. All jobs are printed, as a table or as --json")
        _report_directory(the_directory(shared_dir), rates, json_)
        return
    folder = find_job(job, shared_dir, archived=True)
    if json_ and output is None:
        print_json(asdict(job_row(folder)))
        return
    output = output or Path("report.html")
    with err.status("reading the job ..."):
        page = render_page(collect_job(folder), rates)
    with output_file(output, PAGE_HAS) as file:
        file.write(page)
    if json_:
        print_json({"file": str(output), **asdict(job_row(folder))})
        return
    say(f"written: {output} (job {folder.job_id})")


def _report_directory(shared_dir: Path, rates: dict[str, float], as_json: bool) -> None:
    from pfo_fs.reports.directory import collect_directory, sums

    shared = open_directory(shared_dir)
    with err.status("reading jobs ...") as line:
        rows = collect_directory(shared, line.update)
    users, days = sums(rows, lambda row: row.user), sums(rows, lambda row: row.day)
    if as_json:
        by_name = ({name: asdict(group) for name, group in groups.items()} for groups in (users, days))
        print_json({"jobs": [asdict(row) for row in rows], **dict(zip(("users", "days"), by_name, strict=True))})
        return
    if not rows:
        say(f"{shared_dir} has no jobs")
        return
    show(_job_table(rows))
    whole = sums(rows, lambda _: "all")
    show(_sum_table("user", users | whole, rates))
    show(_sum_table("day", days | whole, rates))


def _job_table(rows: list[JobRow]) -> Table:
    columns = ("job", "user", "state", "iterations", "hours", "kWh", "kWh saved", "time", "remark")
    title = "Jobs; saved: against max clocks, profiling included"
    shown = table(*columns, left=("user", "state", "remark"), title=title)
    for row in rows:
        shown.add_row(
            *map(Text, (row.job_id, row.user, row.state, f"{row.iterations:,}", f"{row.hours:,.2f}")),
            _kwh(row.energy_kwh),
            _kwh(row.saved_kwh),
            Text("–" if row.more_time is None else signed_percent(row.more_time), "bold red" * row.is_slower),
            Text(row.problem),
        )
    return shown


def _sum_table(what: str, groups: dict[str, Sums], rates: dict[str, float]) -> Table:
    more = [name for unit in rates for name in (unit.strip("{} "), f"{unit.strip('{} ')} saved")]
    heads = what, "jobs", "kWh", "kWh saved", *more, "jobs whose saving is not known"
    shown = table(*heads, caption="Energies are of GPUs only, without hosts, network and cooling.")
    for name, group in groups.items():
        energies = [_kwh(group.energy_kwh), _kwh(group.saved_kwh)]
        energies += [f"{rate * kwh:,.2f}" for rate in rates.values() for kwh in (group.energy_kwh, group.saved_kwh)]
        shown.add_row(Text(name), str(group.jobs), *energies, str(group.jobs_without_figures))
    return shown


def _kwh(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.3f}".replace("-0.000", "0.000").replace("-", "−")


def trace(
    job: Job,
    shared_dir: SharedDirOption = None,
    output: Annotated[Path | None, Option("--output", "-o", help="The CSV file; default: JOB.csv.")] = None,
    json_: JsonFlag = False,
) -> None:
    """Write all durations of a job's instructions that were measured at max clocks, for `pfo-fs simulate --trace`."""
    from pfo_fs.reports.collect import collect_job
    from pfo_fs.reports.timeline import write_trace

    folder = find_job(job, shared_dir, archived=True)
    output = output or Path(f"{folder.job_id}.csv")
    found = write_trace(collect_job(folder), output)
    if json_:
        print_json({"file": str(output), "job_id": folder.job_id, **found})
        return
    say(
        f"written: {output}: {counted(found['rows'], 'instruction')} of {counted(found['pipelines'], 'pipeline')} in "
        f"{counted(found['steps'], 'step')}, measured at max clocks; replay: `pfo-fs simulate --trace {output}`"
    )
