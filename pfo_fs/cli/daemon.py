"""`pfo-fs daemon`, also installed as `pfo-fs-daemon`."""

import json
import logging
import os
import pwd
import resource
import signal
import sys
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Annotated, Literal

from rich.logging import RichHandler
from typer import Option

from pfo_fs.cli.terminal import PlainFormatter, SharedDirOption, err, the_directory, wrong_usage

log = logging.getLogger(__name__)

_STOP_WITHIN_S = 10
"""The daemon ends within this time after SIGTERM; service managers send SIGKILL later."""

Watching = Literal["auto", "poll", "events"]
LogLevel = Literal["debug", "info", "warning", "error"]


_SCHEDULERS = (
    "ParetoScheduler (default), InstructionProfiler, Manual, PointSolution, PointSolution3D, or package.module:Class."
)
_SCHEDULER_ARGS = 'The scheduler\'s arguments, a JSON object: {"slowdown": 1.05}.'
_USERS = (
    "Users by name or number, as alice,bob: only their jobs are served, and those of this user, of the directory's "
    "owner and of root. Default: all users who may write into the directory."
)


def daemon(
    shared_dir: SharedDirOption = None,
    scheduler: Annotated[str | None, Option(help=_SCHEDULERS)] = None,
    scheduler_args: Annotated[str | None, Option(help=_SCHEDULER_ARGS)] = None,
    slowdown: Annotated[str, Option(hidden=True)] = "",
    poll_interval: Annotated[float | None, Option(help="Seconds between two reads of a job.")] = None,
    watch: Annotated[Watching | None, Option(help="How changes are noticed.")] = None,
    max_job_idle_time: Annotated[float | None, Option(help="An idle job is archived after this time, in s.")] = None,
    lease_timeout: Annotated[float | None, Option(help="A standby takes over after this silence, in s.")] = None,
    allow_users: Annotated[str | None, Option(help=_USERS)] = None,
    metrics_file: Annotated[Path | None, Option(help="File (.prom) for Prometheus's textfile collector.")] = None,
    metrics_interval: Annotated[float, Option(help="Seconds between writes of --metrics-file.", min=1, max=3600)] = 15,
    log_level: Annotated[LogLevel | None, Option(help="Least serious messages to write.", case_sensitive=False)] = None,
) -> None:
    """Schedule all jobs of a shared directory; if another daemon does so already, stand by to take over."""
    from pfo_fs.coordination.daemon import Daemon
    from pfo_fs.coordination.remote_policy import PolicyProcesses
    from pfo_fs.scheduler import check_scheduler_args, load_scheduler
    from pfo_fs.settings import load_settings
    from pfo_fs.store import Files, SharedDirectory

    if slowdown:
        wrong_usage(f"--slowdown is an argument of the scheduler: --scheduler-args '{{\"slowdown\": {slowdown}}}'")
    if metrics_file is not None and metrics_file.suffix != ".prom":
        wrong_usage(f"--metrics-file: {metrics_file} must end in .prom, or the node exporter does not read it")
    if metrics_file is not None and not metrics_file.parent.is_dir():
        wrong_usage(f"--metrics-file: there is no folder {metrics_file.parent}")
    shared_dir = the_directory(shared_dir)
    users = None if allow_users is None else _user_numbers(allow_users)
    settings = load_settings(
        scheduler=scheduler,
        scheduler_args=_json_object(scheduler_args),
        poll_interval=poll_interval,
        watch=watch,
        max_job_idle_time=max_job_idle_time,
        lease_timeout=lease_timeout,
        log_level=log_level,
    )
    _log_to_stderr(settings.log_level)
    if ":" in settings.scheduler:  # package.module:Class; added last, so that no file here hides an installed module
        with suppress(OSError):
            sys.path.append(os.getcwd())
    check_scheduler_args(load_scheduler(settings.scheduler), settings.scheduler_args)  # before a folder is made
    files = Files(shared_dir, create=True, users=users)
    _warn_of_mount(files.root)
    serving = Daemon(files, settings, make_policy=PolicyProcesses().make)
    metrics = None
    if metrics_file is not None:
        from pfo_fs.reports.metrics import MetricsFile

        metrics = MetricsFile(metrics_file, SharedDirectory(files, "metrics"), lambda: serving.leads, metrics_interval)
        metrics.start()

    def stop(_number: int, _frame: FrameType | None) -> None:
        serving.stop()
        signal.signal(signal.SIGALRM, signal.SIG_DFL)  # the parent may have ignored it, which is inherited
        signal.alarm(_STOP_WITHIN_S)  # ends the process if a call to the shared directory hangs

    with suppress(OSError, ValueError):  # each job's policy takes a descriptor
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup ignores it
        signal.signal(signal.SIGHUP, stop)
    serving.run()
    if metrics is not None:
        metrics.stop()
    if serving.busy:
        # Threads are planning or waiting for the directory. The interpreter's own exit can crash under them.
        logging.shutdown()
        os._exit(0)


def _warn_of_mount(root: Path) -> None:
    """Logs options of the directory's mount that do harm."""
    from pfo_fs.doctor.directory.place import judge_mount
    from pfo_fs.store import mount_of

    for check in judge_mount(mount_of(os.path.realpath(root))):
        if check.name == "mount options" and not check.ok:
            log.warning("%s: mount option %s: %s `pfo-fs doctor` tells more", root, check.found, check.meaning)


def _user_numbers(text: str) -> frozenset[int]:
    """Returns the numbers of users that are given by name or number, with commas between them."""
    found = set()
    for name in filter(None, (part.strip() for part in text.split(","))):
        try:
            found.add(int(name) if name.isascii() and name.isdecimal() else pwd.getpwnam(name).pw_uid)
        except KeyError:
            wrong_usage(f"--allow-users: there is no user {name!r} on this host")
    if not found:
        wrong_usage("--allow-users names no user; leave it out to serve all users who may write into the directory")
    return frozenset(found)


def _json_object(text: str | None) -> dict[str, object] | None:
    if text is None:
        return None
    try:
        value = json.loads(text)
    except ValueError:
        wrong_usage(f"--scheduler-args {text!r} is not JSON; write it as '{{\"slowdown\": 1.05}}'")
    if not isinstance(value, dict):
        wrong_usage(f"--scheduler-args must be a JSON object such as {{}}, not {text}")
    return value


def _log_to_stderr(level: str) -> None:
    if err.is_terminal:
        handler: logging.Handler = RichHandler(console=err, show_path=False, omit_repeated_times=False)
        handler.setFormatter(PlainFormatter("%(message)s"))
    else:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(PlainFormatter("%(asctime)s %(levelname)s %(message)s"))
    logging.basicConfig(level=level, handlers=[handler])
