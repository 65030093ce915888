"""The commands `pfo-fs` and `pfo-fs-daemon`. Exit codes: 0 success, 1 error, 2 wrong usage, 3 not in force yet,
130 interrupted."""

import errno
import io
import os
import signal
import sys
import traceback
from typing import Annotated

import typer

import pfo_fs
from pfo_fs.cli.advise import advise
from pfo_fs.cli.check import check
from pfo_fs.cli.daemon import daemon
from pfo_fs.cli.demo import demo
from pfo_fs.cli.doctor import doctor
from pfo_fs.cli.gpus import power_limit, profile_p2p, reset_clocks
from pfo_fs.cli.plan import plan
from pfo_fs.cli.prune import prune
from pfo_fs.cli.report import report, status, trace
from pfo_fs.cli.schedule import schedule_app, straggler, target
from pfo_fs.cli.simulate import loads, simulate
from pfo_fs.cli.switch import off, on
from pfo_fs.cli.terminal import HELP, PlainCommand, fail, takes_directory
from pfo_fs.errors import PfoError

_OF_OUTPUT = (errno.ENOSPC, errno.EDQUOT, errno.EPIPE, errno.EBADF)
"""Errors without a file's name that come from printing, for example onto a full disk."""

_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGALRM)
"""Signals that end a command; a process that blocks them (JVM, .NET) may have started it, and exec keeps the mask."""

app = typer.Typer(
    help="Save energy in pipeline-parallel training: plan, schedule and watch GPU clocks through a shared directory.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings=HELP,
    epilog="Exit codes: 0 success, 1 error or a problem that was found, 2 wrong usage, 3 written but not in force yet, "
    "130 interrupted.",
)
app.add_typer(schedule_app, name="schedule")


def main() -> None:
    """The command `pfo-fs`."""
    _run(app)


def daemon_main() -> None:
    """The command `pfo-fs-daemon`."""
    _run(daemon_app())


def daemon_app() -> typer.Typer:
    """Returns the command `pfo-fs-daemon`."""
    single = typer.Typer(pretty_exceptions_enable=False, context_settings=HELP)
    single.command(cls=PlainCommand)(takes_directory(daemon))
    return single


def _run(program: typer.Typer) -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # characters that the encoding lacks become "?"
            stream.reconfigure(errors="replace")
    try:
        program()
    except PfoError as error:
        fail(str(error.args[-1] if isinstance(error, OSError) else error))
    except OSError as error:
        of_output = error.filename is None and error.errno in _OF_OUTPUT
        what = error.filename or ("standard output" if of_output else type(error).__name__)
        fail(f"{what}: {error.strerror or error}")
    except KeyboardInterrupt:
        sys.exit(130)
    except MemoryError:
        fail("there is not enough memory for this")
    except Exception as error:  # noqa: BLE001  a traceback tells a user nothing
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{type(error).__name__} in {os.path.basename(place.filename)}, line {place.lineno}"
        fail(f"this is a fault of pfo-fs {pfo_fs.__version__}; please report it: {where}: {error}")


@app.callback(invoke_without_command=True)
def _options(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        print(pfo_fs.__version__)  # noqa: T201
        raise typer.Exit


for command in (
    *(advise, demo, daemon, status, plan, simulate, loads, report, trace, check, target, straggler, doctor),
    *(profile_p2p, off, on, prune, reset_clocks, power_limit),
):
    app.command(cls=PlainCommand)(takes_directory(command))
