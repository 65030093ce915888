"""Training runs all its steps where the start of pfo-fs fails, whatever the reason: one warning, and exit code 0."""

import errno
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).parent / "hostile_start.py"
STEPS = 4
# What Linux alone has, or newer versions of it, of the C library or of Python.
NAMES = (
    "fcntl.F_DUPFD_CLOEXEC fcntl.F_SETSIG fcntl.flock fcntl.lockf os.EFD_CLOEXEC os.MFD_CLOEXEC os.O_NOFOLLOW "
    "os.O_PATH os.POSIX_FADV_DONTNEED os.SCHED_OTHER os.getpriority os.link os.pipe2 os.posix_fadvise "
    "os.posix_fallocate os.setpriority signal.pthread_sigmask signal.valid_signals socket.MSG_NOSIGNAL "
    "socket.SOCK_SEQPACKET socket.SO_PEERCRED socket.has_dualstack_ipv6"
).split()
SITE = """
import importlib, os
module, _, name = os.environ.get("DELETED_NAME", "").partition(".")
if name:
    delattr(importlib.import_module(module), name)
"""
UNREADABLE = "cab\xe9 \xff"  # bytes that are no UTF-8

Case = dict[str, Any]


def of_kind(kind: str, *tried: Any) -> list[Case]:
    return [{"name": f"{kind} {what}", "kind": kind, "what": what} for what in tried]


def given(**arguments: Any) -> Case:
    return {"name": f"given {arguments}", "kind": "none", "arguments": arguments}


def in_environment(**variables: str) -> Case:
    return {"name": f"in the environment {variables}", "kind": "none", "environment": variables}


def run(tmp_path: Path, cases: list[Case]) -> dict[str, Case]:
    """Runs the program; returns what each case reported, by name."""
    (tmp_path / "site").mkdir(exist_ok=True)
    (tmp_path / "site" / "sitecustomize.py").write_text(SITE)
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")},
        "PFO_FS_GPU": "simulated",
        "PFO_FS_SIM_DIR": str(tmp_path / "sim"),
        "PYTHONPATH": os.pathsep.join([str(tmp_path / "site"), str(PROGRAM.parents[1])]),
    }
    done = subprocess.run(
        [sys.executable, str(PROGRAM), str(tmp_path)],
        input=json.dumps(cases),
        capture_output=True,
        text=True,
        env=environment,
        check=True,
    )
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    results = {line["case"]: line for line in lines if "case" in line}
    for line in lines:
        if "ended" in line:
            results.setdefault(line["ended"], {})["exit"] = line["exit"]
    return results


def complaints(cases: list[Case], results: dict[str, Case], most_warnings: int = 1) -> Iterator[str]:
    for case in cases:
        result = results.get(case["name"], {})
        if result.get("exit") != 0 or result.get("steps") != STEPS:
            yield f"{case['name']}: training has ended: {result}"
        elif len(result["told"]) > most_warnings:
            yield f"{case['name']}: too many warnings: {result['told']}"


needs_filter = pytest.mark.skipif(
    platform.machine() != "x86_64", reason="the numbers of system calls are those of x86-64"
)

CALLS = (
    "memfd_create eventfd2 pidfd_open pipe2 ftruncate fallocate flock setsid vfork setpriority getpriority "
    "epoll_create1 inotify_init1 fsync linkat mkdir fadvise64 statfs sched_getaffinity poll clone3 close_range statx"
).split()
HOSTS: dict[str, tuple[list[Case], int]] = {
    "what users have met": (
        [
            *of_kind("call", ["eventfd2", errno.ENOSYS]),
            *of_kind("limit", ["RLIMIT_FSIZE", 0]),
            *of_kind(
                "name", "os.memfd_create", "os.eventfd", "os.pidfd_open", "os.register_at_fork", "fcntl.F_OFD_SETLK"
            ),
            given(job_metadata=UNREADABLE),
            given(pp_degree="two"),
            given(shared_dir="a\0b"),
            given(scheduler="no.such:Class"),
            in_environment(SLURM_JOB_ID="7", SLURM_CLUSTER_NAME=UNREADABLE),
            {"name": "bytes path", "kind": "none", "bytes_path": True},
        ],
        1,
    ),
    # Where helper and clock process fail later, for want of the same name, each of them may be one warning more.
    "without any name that a Python may lack": (of_kind("name", *NAMES), 4),
    "a container that refuses a system call": (of_kind("call", *([call, errno.EPERM] for call in CALLS)), 1),
    "a sandbox that refuses larger buffers": (of_kind("call", ["setsockopt", errno.EPERM]), 0),
    "few descriptors, and without what a shell gives": (
        [
            *of_kind("descriptors", *range(0, 9, 2)),
            *of_kind("closed", [0], [1], [2], [0, 1, 2]),
            *of_kind("limit", ["RLIMIT_FSIZE", 4096]),
            *of_kind("unset", "HOME", "PATH", "TMPDIR"),
            *(given(**{name: UNREADABLE}) for name in ("scheduler", "clock_backend", "switching")),
            *(
                in_environment(**{name: UNREADABLE})
                for name in ("TMPDIR", "USER", "PFO_FS_SCHEDULER", "SLURM_JOB_NAME")
            ),
            *(in_environment(LC_ALL=name) for name in ("C", "en_US.ISO-8859-1")),
        ],
        1,
    ),
}
"""Kinds of hosts: the cases, and the most warnings of each."""


@pytest.mark.slow
@needs_filter
@pytest.mark.parametrize("host", HOSTS)
def test_training_runs_all_its_steps_on_a_host_that_lacks_or_refuses_something(tmp_path: Path, host: str) -> None:
    cases, most_warnings = HOSTS[host]
    assert not list(complaints(cases, run(tmp_path, cases), most_warnings))


@pytest.mark.slow
@needs_filter
def test_where_a_sandbox_refuses_what_local_sockets_need_the_warning_names_the_call(tmp_path: Path) -> None:
    calls = ("socket", "socketpair", "connect", "bind", "listen", "accept4", "getsockopt", "sendto", "recvfrom")
    cases = of_kind("call", *([call, errno.EPERM] for call in calls))
    results = run(tmp_path, cases)
    assert not list(complaints(cases, results))
    told = {call: str(results[case["name"]]["told"]) for call, case in zip(calls, cases, strict=True)}
    assert not {call: text for call, text in told.items() if f"{call}() is not allowed" not in text}
