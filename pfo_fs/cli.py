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
