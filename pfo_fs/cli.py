"""The commands `pfo-fs` and `pfo-fs-daemon`. Exit codes: 0 fine, 1 something is wrong, 2 wrong usage."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.logging import RichHandler

import pfo_fs
from pfo_fs.errors import PfoError

if TYPE_CHECKING:
    from pfo_fs.store import JobFolder, SharedDirectory

app = typer.Typer(
    help="Pipeline frequency optimization through a shared directory.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
schedule_app = typer.Typer(help="Look at, check and set the schedule of a running job.", no_args_is_help=True)
app.add_typer(schedule_app, name="schedule")

out = Console()
err = Console(stderr=True)

SharedDir = Annotated[Path, typer.Argument(help="The shared directory.", envvar="PFO_FS_SHARED_DIR")]
Job = Annotated[str, typer.Argument(help="Job id, the path of its folder, or 'latest'.")]
JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
SharedDirOption = Annotated[
    Path | None,
    typer.Option("--shared-dir", "-d", help="The shared directory, unless JOB is a path.", envvar="PFO_FS_SHARED_DIR"),
]


def main() -> None:
    """The command `pfo-fs`."""
    _run(app)


def daemon_main() -> None:
    """The command `pfo-fs-daemon`."""
    single = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    single.command()(daemon)
    _run(single)


def _run(program: typer.Typer) -> None:
    try:
        program()
    except PfoError as error:
        _fail(str(error.args[-1] if isinstance(error, OSError) else error))
    except KeyboardInterrupt:
        sys.exit(130)


def _fail(text: str) -> NoReturn:
    err.print(f"[bold red]error:[/] {text}", highlight=False, soft_wrap=True)
    sys.exit(1)


@app.callback(invoke_without_command=True)
def _options(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        print(pfo_fs.__version__)  # noqa: T201
        raise typer.Exit


@app.command()
def daemon(
    shared_dir: SharedDir,
    scheduler: Annotated[
        str | None, typer.Option(help="Manual, PointSolution, PointSolution3D, or package.module:Class.")
    ] = None,
    scheduler_args: Annotated[
        str | None, typer.Option(help='Its arguments, a JSON object: {"solution_path": "plan.py"}.')
    ] = None,
    poll_interval: Annotated[float | None, typer.Option(help="Seconds between two looks.")] = None,
    watch: Annotated[str | None, typer.Option(help="auto, poll or events.")] = None,
    max_job_idle_time: Annotated[float | None, typer.Option(help="Seconds until an idle job is archived.")] = None,
    lease_timeout: Annotated[float | None, typer.Option(help="Seconds until a silent leader is replaced.")] = None,
    dump_dir: Annotated[Path | None, typer.Option(help="Also write Zeus's dump format here.")] = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error.")] = None,
) -> None:
    """Schedule all jobs of a shared directory; with another daemon already there, stand by for it."""
    from pfo_fs.daemon import Daemon
    from pfo_fs.settings import load_settings
    from pfo_fs.store import Files

    settings = load_settings(
        scheduler=scheduler,
        scheduler_args=_json_object(scheduler_args),
        poll_interval=poll_interval,
        watch=watch,
        max_job_idle_time=max_job_idle_time,
        lease_timeout=lease_timeout,
        dump_data=True if dump_dir else None,
        dump_dir=dump_dir,
        log_level=log_level,
    )
    _log_to_stderr(settings.log_level)
    sys.path.insert(0, os.getcwd())  # where a scheduler of one's own is looked for first, as by python -m
    serving = Daemon(Files(shared_dir), settings)

    def stop(_number: int, _frame: FrameType | None) -> None:
        serving.stop()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    serving.run()


@app.command()
def status(
    shared_dir: SharedDir,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Refresh every 2 s until Ctrl-C.")] = False,
    json_: JsonFlag = False,
    ended: Annotated[int, typer.Option(help="How many jobs that are over to show.")] = 5,
) -> None:
    """Show jobs, ranks, schedule in force, last step, last error and daemon."""
    from pfo_fs.status import collect, render

    shared = _open(shared_dir)
    if not {"jobs", "daemon.json"} & set(shared.files.names()):
        _fail(f"{shared_dir} is no shared directory of pfo-fs: no job and no daemon has been there")
    if json_:
        print(json.dumps(collect(shared, ended=ended), indent=2))  # noqa: T201
    elif watch:
        from rich.live import Live

        if not out.is_terminal:
            _fail("--watch needs a terminal; leave it out, or use --json in a loop")
        with Live(render(collect(shared, ended=ended)), console=out, auto_refresh=False, screen=True) as live:
            while True:
                time.sleep(2)
                live.update(render(collect(shared, ended=ended)), refresh=True)
    else:
        out.print(render(collect(shared, ended=ended)))


@app.command()
def demo(
    iterations: Annotated[int, typer.Option(help="Iterations without, and again with, the plan.", min=2)] = 5,
    plan: Annotated[Path | None, typer.Option(help="A plan for 8 stages x 12 micro-batches to use instead.")] = None,
    shared_dir: Annotated[Path | None, typer.Option(help="Keep the shared directory here.")] = None,
    json_: JsonFlag = False,
) -> None:
    """Train a small GPT over 8 stages on simulated GPUs, first without a plan and then with."""
    from pfo_fs.demo import run_demo

    sys.exit(run_demo(iterations=iterations, plan=plan, shared_dir=shared_dir, as_json=json_))


@app.command()
def plan(
    profile: Annotated[Path, typer.Argument(help="CSV with stage,instruction,frequency,time,energy (MHz, s, J).")],
    num_microbatches: Annotated[int, typer.Option(help="Micro-batches of one iteration.", min=1)],
    schedule: Annotated[
        str, typer.Option(help="1f1b, gpipe, interleaved, zb-h1, zb-v or early-recomputation.")
    ] = "1f1b",
    num_ranks: Annotated[int | None, typer.Option(help="Ranks of the pipeline, for interleaved.")] = None,
    p2p_power: Annotated[float | None, typer.Option(help="Watts of a GPU that waits for its neighbours.")] = None,
    gpu: Annotated[str | None, typer.Option(help="A100 or A40: take the published watts instead.")] = None,
    slowdown: Annotated[float | None, typer.Option(help="Longest iteration, over the fastest: 1.03.")] = None,
    deadline: Annotated[float | None, typer.Option(help="Longest iteration in s.")] = None,
    straggler: Annotated[
        float | None, typer.Option(help="Iteration time in s of another pipeline, to be waited for.")
    ] = None,
    energy: Annotated[float | None, typer.Option(help="Most energy of an iteration in J, all GPUs.")] = None,
    power: Annotated[float | None, typer.Option(help="Highest average power in W, all GPUs.")] = None,
    frontier: Annotated[int | None, typer.Option(help="So many plans, from fastest to least energy.")] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Folder for plans, tables, pictures.")] = None,
    format_: Annotated[str, typer.Option("--format", help="Plan files: yaml, or lowtime for a Zeus server.")] = "yaml",
    solver: Annotated[str, typer.Option(help="lp, lowtime, or both to compare them.")] = "lp",
    unit_time: Annotated[float, typer.Option(help="lowtime's step in s.")] = 0.001,
    gpus_per_rank: Annotated[int, typer.Option(help="Tensor-parallel GPUs of a rank; energies are of all.")] = 1,
    switch_time: Annotated[float, typer.Option(help="Seconds that a clock change costs a rank.")] = 0.0,
    delay: Annotated[float, typer.Option(help="Seconds of communication between two ranks.")] = 0.0,
    overhead: Annotated[float, typer.Option(help="Seconds of an iteration beyond its pipeline.")] = 0.0,
    calibrate: Annotated[
        Path | None, typer.Option(help="JSON of measured iterations, to find delay and overhead.")
    ] = None,
    derive: Annotated[bool, typer.Option(help="Estimate unprofiled instructions from forward and backward.")] = False,
    workers: Annotated[int | None, typer.Option(help="Processes for --frontier; default: all cores.", min=1)] = None,
    pictures: Annotated[bool, typer.Option(help="Draw frontier.png and pipeline.png too.")] = True,
    json_: JsonFlag = False,
) -> None:
    """Plan clocks from a profile: least energy for a deadline, slowdown, straggler or power, with a certificate.

    Without any of them: least energy with no slowdown at all. A frontier that was interrupted goes on where it was.
    """
    from pfo_fs import plan_command as command
    from pfo_fs.planner import all_maximum

    _check_choice("--format", format_, ("yaml", "lowtime"))
    _check_choice("--solver", solver, ("lp", "lowtime", "both"))
    given = {"slowdown": slowdown, "deadline": deadline, "straggler": straggler, "energy": energy, "power": power}
    asked = {name: value for name, value in given.items() if value is not None}
    if len(asked) + (frontier is not None) > 1:
        names = [*asked, *(["frontier"] if frontier is not None else [])]
        _fail(f"ask for one thing at a time, not for {' and '.join('--' + name for name in names)}")
    problem, calibration = command.make_problem(
        command.Request(
            profile,
            num_microbatches,
            schedule,
            num_ranks,
            p2p_power,
            gpu,
            gpus_per_rank,
            switch_time,
            delay,
            overhead,
            calibrate,
            derive,
        )
    )
    for warning in problem.warnings:
        err.print(f"[yellow]warning:[/] {warning}", highlight=False, soft_wrap=True)
    if calibration is not None:
        err.print(
            f"calibrated on {calibration.iterations} measured iterations: {calibration.delay_s * 1e3:.3g} ms between "
            f"ranks, {calibration.overhead_s:.4g} s per iteration; iterations left out of the fit are predicted within "
            f"{calibration.error:.2%} (the bare pipeline: {calibration.bare_error:.2%})",
            highlight=False,
            soft_wrap=True,
        )
    if output is not None:
        try:
            output.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            _fail(f"{output}: cannot be used for output: {error.strerror}")
    if frontier is not None:
        if solver != "lp":
            _fail("--frontier is computed by the lp solver; for lowtime's own, ask it for one plan at a time")
        plans = _frontier(command, problem, frontier, output, workers or os.cpu_count() or 1, quiet=json_)
        rows: list[tuple[str, Any]] = [("all maximum", all_maximum(problem))]
        rows += [(f"plan {number:05d}", found) for number, found in enumerate(plans)]
        written = command.write_frontier(plans, output, format_, pictures) if output else []
        shown = rows if len(rows) <= _MAX_ROWS else [*rows[:: max(1, len(rows) // _MAX_ROWS)], rows[-1]]
    else:
        rows = command.find_plans(problem, asked, solver, unit_time)
        shown = rows
        best = rows[-1][1]
        if isinstance(best, str):
            _fail(best)
        written = command.write_one(best, output, format_, pictures) if output else []
    if json_:
        print(json.dumps({"plans": command.as_json(rows), "files": [str(path) for path in written]}))  # noqa: T201
        return
    out.print(command.plans_table(shown))
    for name, found in rows:
        if isinstance(found, str):
            out.print(f"{name}: {found}", highlight=False, soft_wrap=True)
    if power is not None and rows[-1][1].average_power_w < 0.97 * power:
        err.print(f"the fastest plan draws less than {power:g} W already (all GPUs of the pipeline together)")
    if written:
        others = f" and {len(written) - 1} more files" if len(written) > 1 else ""
        out.print(f"written: {written[0]}{others}", soft_wrap=True)


_MAX_ROWS = 24


def _check_choice(option: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        _fail(f"{option} is one of {', '.join(choices)}, not {value!r}")


def _frontier(command: Any, problem: Any, points: int, output: Path | None, workers: int, quiet: bool) -> list[Any]:
    """Computes a frontier with a progress bar; plans by falling deadline."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=err, transient=True, disable=quiet or not err.is_terminal) as progress:
        task = progress.add_task("least energy for the longest iteration", total=None)
        count, coming = command.frontier_points(problem, points, output, workers)
        progress.update(task, total=count, description="frontier")
        plans = []
        for found in coming:
            plans.append(found)
            progress.advance(task)
    return sorted(plans, key=lambda found: -found.deadline_s)


@schedule_app.command("show")
def schedule_show(job: Job, shared_dir: SharedDirOption = None, json_: JsonFlag = False) -> None:
    """Print the schedule in force, as YAML that can be edited and set."""
    from pfo_fs.scheduler import format_schedule_yaml

    folder = _find_job(job, shared_dir)
    job_body, infos = _job_and_ranks(folder)
    current = folder.read_current()
    index = folder.read_index(current.number) if current is not None and current.number >= 0 else None
    if current is None or index is None:
        _fail(f"job {folder.job_id} has no schedule yet" + (f": {current.message}" if current else ""))
    schedules = [schedule for info in infos if (schedule := folder.read_schedule(index, info)) is not None]
    if json_:
        document = {
            "job_id": folder.job_id,
            "number": index.number,
            "from_step": current.start_step,
            "source": index.source.model_dump(),
            "schedules": [schedule.model_dump() for schedule in schedules],
        }
        print(json.dumps(document))  # noqa: T201
        return
    comment = f"job {folder.job_id}, schedule {index.number} ({index.source.kind}), from step {current.start_step}"
    print(format_schedule_yaml(schedules, infos, job_body.job_info, comment=comment), end="")  # noqa: T201


@schedule_app.command("check")
def schedule_check(
    job: Job,
    file: Annotated[Path | None, typer.Argument(help="The YAML, - for standard input; default: the job's own.")] = None,
    shared_dir: SharedDirOption = None,
    json_: JsonFlag = False,
) -> None:
    """Check a schedule against a job, as its coordinator would; exit code 1 if it would be refused."""
    folder = _find_job(job, shared_dir)
    name, content = _yaml_of(folder, file)
    problems = _problems(folder, content)
    if json_:
        print(json.dumps({"file": name, "ok": not problems, "problems": problems}))  # noqa: T201
    elif not problems:
        out.print(f"[green]{name} is fine[/] for job {folder.job_id}", soft_wrap=True)
    else:
        for problem in problems:
            where = f":{problem['line']}" if problem["line"] else ""
            out.print(f"[bold red]{name}{where}:[/] {problem['reason']}", highlight=False, soft_wrap=True)
    sys.exit(1 if problems else 0)


@schedule_app.command("set")
def schedule_set(
    job: Job,
    file: Annotated[Path, typer.Argument(help="The YAML to put in force; - for standard input.")],
    shared_dir: SharedDirOption = None,
    force: Annotated[bool, typer.Option(help="Even if it would be refused.")] = False,
) -> None:
    """Check a schedule and put it in the job's folder, where it comes into force within seconds."""
    folder = _find_job(job, shared_dir)
    name, content = _yaml_of(folder, file)
    problems = _problems(folder, content)
    for problem in problems:
        err.print(f"[bold red]{name}:{problem['line']}:[/] {problem['reason']}", highlight=False, soft_wrap=True)
    if problems and not force:
        sys.exit(1)
    folder.files.publish(f"{folder.path}/schedule.yaml", content)
    out.print(f"set; {folder.files.root / folder.path}/schedule.status.yaml says when it is in force", soft_wrap=True)


# ---- the pieces


def _open(shared_dir: Path) -> SharedDirectory:
    from pfo_fs.store import Files, SharedDirectory

    return SharedDirectory(Files(shared_dir, create=False))


def _find_job(job: str, shared_dir: Path | None) -> JobFolder:
    """The folder of a job that is given by id (with a shared directory), by path, or as `latest`."""
    path = Path(job)
    if shared_dir is None and path.parent.name == "jobs" and path.is_dir():
        path = path.resolve()
        return _open(path.parent.parent).job(path.name)
    if shared_dir is None:
        _fail(f"{job!r}: give the path of the job's folder, or --shared-dir (or PFO_FS_SHARED_DIR)")
    shared = _open(shared_dir)
    ids = shared.job_ids()
    if job == "latest":
        if not ids:
            _fail(f"{shared_dir} has no jobs")
        job = ids[-1]
    matches = [job] if job in ids else [job_id for job_id in ids if job in job_id]
    if len(matches) != 1:
        _fail(f"{job!r} is no job in {shared_dir}" + (f"; it could be {', '.join(matches[:5])}" if matches else ""))
    return shared.job(matches[0])


def _job_and_ranks(folder: JobFolder) -> tuple[Any, list[Any]]:
    body = folder.read_job()
    if body is None:
        _fail(f"{folder.files.root / folder.path}: job.json is not there")
    ranks = [folder.read_rank(rank) for rank in folder.registered_ranks()]
    return body, [rank.rank_info for rank in ranks if rank is not None]


def _yaml_of(folder: JobFolder, file: Path | None) -> tuple[str, bytes]:
    if file is not None:
        try:
            return str(file), sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
        except OSError as error:
            _fail(f"{file}: {error.strerror}")
    content = folder.read_yaml()
    if content is None:
        _fail(f"job {folder.job_id} has no schedule.yaml")
    return "schedule.yaml", content


def _problems(folder: JobFolder, content: bytes) -> list[dict[str, Any]]:
    from pfo_fs.coordination.orders import known_orders
    from pfo_fs.errors import PlanError
    from pfo_fs.scheduler.schedule_yaml import ScheduleProblems, parse_schedule_yaml

    job_body, infos = _job_and_ranks(folder)
    try:
        parse_schedule_yaml(content).resolve(job_body.job_info, infos, known_orders(folder, infos))
    except ScheduleProblems as error:
        return [{"line": problem.line, "reason": problem.reason} for problem in error.problems]
    except PlanError as error:
        return [{"line": error.line, "reason": str(error)}]
    return []


def _json_object(text: str | None) -> dict[str, Any] | None:
    if text is None:
        return None
    try:
        value = json.loads(text)
    except ValueError as error:
        _fail(f"--scheduler-args is no JSON: {error}")
    if not isinstance(value, dict):
        _fail(f"--scheduler-args must be a JSON object such as {{}}, not {text}")
    return value


def _log_to_stderr(level: str) -> None:
    if err.is_terminal:
        handler: logging.Handler = RichHandler(console=err, show_path=False, omit_repeated_times=False)
        logging.basicConfig(level=level, format="%(message)s", handlers=[handler])
    else:
        logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
