"""The commands `pfo-fs` and `pfo-fs-daemon`. Exit codes: 0 success, 1 error, 2 wrong usage, 130 interrupted."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer
from rich.logging import RichHandler

import pfo_fs
from pfo_fs.cli.p2p import profile_p2p
from pfo_fs.cli.plan import plan
from pfo_fs.cli.power_limit import power_limit
from pfo_fs.cli.report import report, trace
from pfo_fs.cli.requests import straggler, target
from pfo_fs.cli.schedule import schedule_app
from pfo_fs.cli.simulate import simulate
from pfo_fs.cli.terminal import JsonFlag, PlainFormatter, SharedDir, err, fail, open_directory, out
from pfo_fs.errors import PfoError

_STOP_WITHIN_S = 10

app = typer.Typer(
    help="Save energy in pipeline-parallel training: plan, schedule and watch GPU clocks through a shared directory.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
app.add_typer(schedule_app, name="schedule")


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
        fail(str(error.args[-1] if isinstance(error, OSError) else error))
    except OSError as error:  # standard output on a full disk, for one
        fail(f"{error.filename or 'output'}: {error.strerror or error}")
    except KeyboardInterrupt:
        sys.exit(130)


@app.callback(invoke_without_command=True)
def _options(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        print(pfo_fs.__version__)  # noqa: T201
        raise typer.Exit


@app.command()
def daemon(
    shared_dir: SharedDir,
    scheduler: Annotated[
        str | None,
        typer.Option(
            help="ParetoScheduler (default), InstructionProfiler, Manual, PointSolution, PointSolution3D, or "
            "package.module:Class."
        ),
    ] = None,
    scheduler_args: Annotated[
        str | None, typer.Option(help='Arguments of the scheduler, a JSON object: {"slowdown": 1.05}.')
    ] = None,
    poll_interval: Annotated[float | None, typer.Option(help="Seconds between two reads of a job.")] = None,
    watch: Annotated[str | None, typer.Option(help="How changes are noticed: auto, poll or events.")] = None,
    max_job_idle_time: Annotated[
        float | None, typer.Option(help="Seconds without a sign of life after which a job is ended and archived.")
    ] = None,
    lease_timeout: Annotated[
        float | None, typer.Option(help="Seconds without a heartbeat after which a standby daemon takes over.")
    ] = None,
    dump_dir: Annotated[Path | None, typer.Option(help="Folder for copies in Zeus's dump format.")] = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error.")] = None,
) -> None:
    """Schedule all jobs of a shared directory; if another daemon does so already, stand by to take over."""
    from pfo_fs.coordination.daemon import Daemon
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
    sys.path.insert(0, os.getcwd())  # where --scheduler package.module:Class is looked for first, as by python -m
    serving = Daemon(Files(shared_dir, create=True), settings)

    def stop(_number: int, _frame: FrameType | None) -> None:
        serving.stop()
        signal.alarm(_STOP_WITHIN_S)  # ends the process if a call to the shared directory hangs

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    serving.run()
    if serving.busy:
        # Threads are planning or waiting for the directory. The interpreter's own exit can crash under them.
        logging.shutdown()
        os._exit(0)


@app.command()
def status(
    shared_dir: SharedDir,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Refresh every 2 s until Ctrl-C.")] = False,
    json_: JsonFlag = False,
    ended: Annotated[int, typer.Option(help="How many ended jobs to show.")] = 5,
) -> None:
    """Show the daemon and all jobs: state, ranks, schedule in force, last step, last error."""
    from pfo_fs.reports.status import collect_status, render

    shared = open_directory(shared_dir)
    if not shared.is_in_use:
        fail(f"{shared_dir} is not a shared directory of pfo-fs: it has no jobs and no daemon. Is the path right?")
    if json_:
        print(json.dumps(collect_status(shared, ended=ended), indent=2))  # noqa: T201
    elif watch:
        from rich.live import Live

        if not out.is_terminal:
            fail("--watch needs a terminal; leave it out, or use --json in a loop")
        with Live(render(collect_status(shared, ended=ended)), console=out, auto_refresh=False, screen=True) as live:
            while True:
                time.sleep(2)
                live.update(render(collect_status(shared, ended=ended)), refresh=True)
    else:
        out.print(render(collect_status(shared, ended=ended)))


@app.command()
def demo(
    slowdown: Annotated[
        float, typer.Option(help="How many times as long an iteration may take as at the highest clocks.", min=1.0)
    ] = 1.0,
    minutes: Annotated[float, typer.Option(help="Minutes after which the demo gives up.", min=1.0)] = 10.0,
    shared_dir: Annotated[
        Path | None, typer.Option(help="Shared directory to use and keep; default: a temporary one.")
    ] = None,
    json_: JsonFlag = False,
) -> None:
    """See it work without a GPU: train a small GPT over 8 stages on simulated GPUs (about four minutes)."""
    from pfo_fs.cli.demo import run_demo

    sys.exit(run_demo(slowdown=slowdown, minutes=minutes, shared_dir=shared_dir, as_json=json_))


for command in (plan, simulate, report, trace, target, straggler, profile_p2p):
    app.command()(command)
app.command("power-limit")(power_limit)


def _json_object(text: str | None) -> dict[str, Any] | None:
    if text is None:
        return None
    try:
        value = json.loads(text)
    except ValueError as error:
        fail(f"--scheduler-args is not JSON: {error}")
    if not isinstance(value, dict):
        fail(f"--scheduler-args must be a JSON object such as {{}}, not {text}")
    return value


def _log_to_stderr(level: str) -> None:
    if err.is_terminal:
        handler: logging.Handler = RichHandler(console=err, show_path=False, omit_repeated_times=False)
        handler.setFormatter(PlainFormatter("%(message)s"))
    else:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(PlainFormatter("%(asctime)s %(levelname)s %(message)s"))
    logging.basicConfig(level=level, handlers=[handler])
