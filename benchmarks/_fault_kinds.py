"""The faults of `faults.py`, by kind: set-up, child processes, daemon and directory, GPU driver, the program itself."""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import json
import os
import shutil
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from _fault_job import ROOT, Job
from _fault_rank import MIDWAY, OPTIONAL_NAMES, SYSTEM_CALLS

Act = Callable[[Job], object]
HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Fault:
    """Something that is wrong.

    Attributes:
        kind: What it is about.
        name: What it is.
        given: What the ranks do to themselves before they import the product.
        environment: Variables of the ranks.
        prepare: What happens to the job before it starts.
        happens: What happens while it trains, at clocks that a person has lowered; None: nothing.
        training_too: Whether `happens` stops training itself; then it happens to the job beside it, too.
        has_daemon: Whether a daemon schedules.
        ranks: Number of ranks.
        quick: Whether it is part of `--quick`.
        needs: Says what is missing here; empty if nothing is.
    """

    kind: str
    name: str
    given: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    prepare: Act | None = None
    happens: Act | None = None
    training_too: bool = False
    has_daemon: bool = False
    ranks: int = 1
    quick: bool = False
    needs: Callable[[], str] = lambda: ""


def _root() -> str:
    return "" if os.geteuid() == 0 and os.access("/dev/fuse", os.W_OK) else "root and /dev/fuse"


# ---- set-up


def _sitecustomize(job: Job, names: str) -> None:
    """Deletes names in each Python of the job that looks for a `sitecustomize`."""
    site = job.folder / "site"
    site.mkdir()
    text = f"import contextlib\nfor module, name in {[each.split('.') for each in names.split()]}:\n"
    text += "    with contextlib.suppress(AttributeError, ImportError):\n        delattr(__import__(module), name)\n"
    (site / "sitecustomize.py").write_text(text)
    job.environment["PYTHONPATH"] = f"{site}{os.pathsep}{ROOT}"


def _without(names: str, title: str = "", **more: Any) -> Fault:
    def prepare(job: Job) -> None:
        _sitecustomize(job, names)

    given = {"delete": names.split()}
    if "only" in more:
        return Fault("A set-up", title, {**given, "only": more["only"]}, ranks=2, has_daemon=True)
    return Fault("A set-up", f"no {title or names}", given, prepare=prepare, **more)


def _odd_directory(name: str) -> Act:
    def prepare(job: Job) -> None:
        path = os.path.join(os.fsencode(job.folder), name.encode("utf-8", "surrogateescape"))
        os.rename(job.root, path)
        job.root = Path(os.fsdecode(path))
        job.given["dir"] = os.fsdecode(path)

    return prepare


def _a_file(job: Job) -> None:
    job.root.rmdir()
    job.root.write_text("a file")


_ALL_NAMES = " ".join(f"{module}.{name}" for module, names in OPTIONAL_NAMES.items() for name in names.split())

SET_UP = [
    _without(_ALL_NAMES, "optional name of os, fcntl, signal, socket"),
    _without("os.memfd_create", quick=True),
    _without("os.pidfd_open signal.pidfd_send_signal"),
    _without("os.eventfd"),
    _without("fcntl.F_OFD_SETLK fcntl.F_OFD_SETLKW fcntl.F_OFD_GETLK"),
    _without("os.memfd_create", "no os.memfd_create on one of two ranks", only=[1]),
    *(
        Fault("A set-up", f"{name} refused", {"refuses": [name], "errno": "EPERM"}, quick=name == "memfd_create")
        for name in SYSTEM_CALLS
    ),
    Fault("A set-up", "all of these refused but two", {"refuses": sorted({*SYSTEM_CALLS} - {"socket", "getrandom"})}),
    Fault(
        "A set-up",
        "all of these missing but two",
        {"refuses": sorted({*SYSTEM_CALLS} - {"socket", "getrandom"}), "errno": "ENOSYS"},
    ),
    *(
        Fault("A set-up", f"{free} free descriptors", {"free_descriptors": free}, quick=free == 0)
        for free in (0, 1, 2, 3, 4, 6, 8)
    ),
    Fault("A set-up", "files may not grow", {"limits": {"RLIMIT_FSIZE": 0}}),
    Fault(
        "A set-up",
        "no more processes",
        {"limits": {"RLIMIT_NPROC": 1}},
        needs=lambda: "" if os.geteuid() else "a user who is not root",
    ),
    Fault("A set-up", "standard streams closed", {"closes": [0, 1, 2]}, quick=True),
    Fault("A set-up", "standard input closed", {"closes": [0]}),
    Fault(
        "A set-up", "locale C without UTF-8", environment={"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    ),
    Fault(
        "A set-up",
        "names that are not UTF-8",
        {"options": {"job_metadata": "\udcff\udcfe"}},
        {"SLURM_CLUSTER_NAME": "\udcff", "SLURM_JOB_ID": "\udcfe"},
    ),
    Fault("A set-up", "directory whose name is not UTF-8", prepare=_odd_directory("p\udcff dir")),
    Fault("A set-up", "directory with a line break in its name", prepare=_odd_directory("line\nbreak")),
    Fault("A set-up", "the directory is a file", prepare=_a_file),
    Fault(
        "A set-up",
        "no folder for sockets and notes",
        environment={"PFO_FS_RUN_DIR": "/proc/none", "TMPDIR": "/proc/none"},
    ),
    Fault("A set-up", "nothing that others may read", {"umask": 0o777}),
]


# ---- child processes


def _sends(number: signal.Signals, *kinds: str, then: signal.Signals | None = None, after_s: float = 1.5) -> Act:
    def happens(job: Job) -> None:
        job.signal(number, *kinds)
        if then is not None:
            time.sleep(after_s)
            job.signal(then, *kinds)

    return happens


def _suspended(job: Job) -> None:
    """What a batch system does to a job that another one replaces for a while; its clocks must not stay."""
    job.signal(signal.SIGTSTP, "helper", "clocks", "rank")
    if not job.wait(lambda: not any(job.clocks_mhz()), 1.5):
        job.notes.append(f"clocks stay at {job.clocks_mhz()} MHz while it is suspended")
    job.signal(signal.SIGSTOP, "helper", "clocks", "rank")
    time.sleep(0.5)
    job.signal(signal.SIGCONT, "helper", "clocks", "rank")


def _again_and_again(kind: str) -> Act:
    def happens(job: Job) -> None:
        for _ in range(3):
            job.signal(signal.SIGKILL, kind)
            time.sleep(0.4)

    return happens


def _shadowed(job: Job) -> None:
    """The package lies in a folder with others that are named as modules of the standard library."""
    site = job.folder / "packages"
    site.mkdir()
    for name in ("pfo_fs", "benchmarks"):
        (site / name).symlink_to(ROOT / name)
    for name in ("argparse", "dataclasses", "statistics", "enum", "typing", "asyncio", "socket", "logging"):
        (site / f"{name}.py").write_text(
            "raise SystemExit('a package of this name came before the standard library')\n"
        )
    job.given["site"] = str(site)
    job.environment["PYTHONPATH"] = str(ROOT)


_CALM = {"handles": [signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP]}
CHILDREN = [
    Fault("B children", "packages named as the standard library's", prepare=_shadowed, quick=True),
    Fault("B children", "a frozen program", {"frozen": True}, quick=True),
    Fault("B children", "the interpreter is gone", {"executable": "/nonexistent/python"}),
    Fault("B children", "no name of the interpreter", {"executable": ""}),
    Fault("B children", "helper killed", happens=_sends(signal.SIGKILL, "helper"), quick=True),
    Fault("B children", "helper killed three times", happens=_again_and_again("helper")),
    Fault("B children", "helper stopped", happens=_sends(signal.SIGSTOP, "helper")),
    Fault("B children", "clock process killed", happens=_sends(signal.SIGKILL, "clocks"), quick=True),
    Fault("B children", "clock process stopped", happens=_sends(signal.SIGSTOP, "clocks")),
    Fault("B children", "both killed", happens=_sends(signal.SIGKILL, "helper", "clocks")),
    Fault("B children", "both stopped", happens=_sends(signal.SIGSTOP, "helper", "clocks")),
    Fault("B children", "helper killed, two ranks", happens=_sends(signal.SIGKILL, "helper"), ranks=2, has_daemon=True),
    Fault(
        "B children",
        "clock processes killed, two ranks",
        happens=_sends(signal.SIGKILL, "clocks"),
        ranks=2,
        has_daemon=True,
    ),
    *(
        Fault("B children", f"{number.name} to all", _CALM, happens=_sends(number, "rank", "helper", "clocks"))
        for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP)
    ),
    *(
        Fault("B children", f"{number.name} to the children", happens=_sends(number, "helper", "clocks"))
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGABRT, signal.SIGALRM)
    ),
    Fault("B children", "suspended and resumed, as by Slurm", happens=_suspended, training_too=True),
    Fault(
        "B children",
        "SIGSTOP to all, then SIGCONT",
        happens=_sends(signal.SIGSTOP, "rank", "helper", "clocks", then=signal.SIGCONT),
        training_too=True,
    ),
]


# ---- daemon and directory


def _mount(job: Job, kind: str, flags: int = 0, options: str = "") -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    arguments = [text.encode() for text in ("none", str(job.root), kind)]
    if libc.mount(*arguments, flags, options.encode()):
        raise OSError(ctypes.get_errno(), f"mount of {kind}")
    job.undo.append(lambda: libc.umount2(str(job.root).encode(), 2))


def _hangs(job: Job) -> None:
    """Mounts a file system whose server never answers; closing its connection ends that."""
    fd = os.open("/dev/fuse", os.O_RDWR)
    _mount(job, "fuse", 0, f"fd={fd},rootmode=40000,user_id=0,group_id=0,allow_other")
    job.undo.append(lambda: os.close(fd))


def _goes_away(job: Job) -> None:
    away = job.folder / "away"
    job.root.rename(away)


def _is_removed(job: Job) -> None:
    for _ in range(20):
        shutil.rmtree(job.root, ignore_errors=True)
        time.sleep(0.02)


def _may_not_be_entered(job: Job) -> None:
    os.chmod(job.root, 0)
    job.undo.append(lambda: os.chmod(job.root, 0o700))


def _fills_up(job: Job) -> None:
    """The file system is full from the start, and no file can be made."""
    _mount(job, "tmpfs", 0, "size=64k,nr_inodes=3,mode=700")
    with suppress(OSError), (job.root / "full").open("wb") as file:
        file.write(bytes(1 << 20))


def _locks(job: Job) -> None:
    """Somebody holds all locks there are, and does not let go."""
    for path in [*job.root.rglob("*.lock"), *job.root.rglob(".*lock*")]:
        with suppress(OSError):
            file = path.open("rb")
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            job.undo.append(file.close)


def _garbage(content: bytes, *patterns: str) -> Act:
    """Replaces files again and again, as a member of the group may."""

    def happens(job: Job) -> None:
        for _ in range(10):
            for path in chain.from_iterable(job.root.glob(pattern) for pattern in patterns):
                with suppress(OSError):
                    temporary = path.with_name("x")
                    temporary.write_bytes(content)
                    temporary.replace(path)
            time.sleep(0.1)

    return happens


def _writes(name: str, content: bytes) -> Act:
    def act(job: Job) -> None:
        for folder in [job.root, *job.root.glob("jobs/*")] if "/" not in name else [job.root]:
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)

    return act


def _forged(job: Job) -> None:
    """A record of the leader's kind with the highest generation there is."""
    for path in job.root.glob("jobs/*/current.json"):
        head, _, body = path.read_bytes().partition(b',"body":')
        record = json.loads(body[: body.rindex(b"}")])
        record.update(generation=999_999_999, number=0, heartbeat=1)
        text = json.dumps(record).encode()
        about = json.loads(head + b"}")
        about.update(length=len(text), sha256=hashlib.sha256(text).hexdigest(), sequence=999_999)
        path.write_bytes(json.dumps(about, separators=(",", ":")).encode()[:-1] + b',"body":' + text + b"}\n")


def _many_profiles(job: Job) -> None:
    big = job.folder / "about"
    big.write_text('{"x":[' + ",".join(["[]"] * 600_000) + "]}")
    for number in range(2000):
        folder = job.root / "profiles" / f"k{number}"
        folder.mkdir(parents=True)
        os.link(big, folder / "about.json")


_DAEMON = {"has_daemon": True}
_LAUGHS = b"b0: &b0 [x, x]\n" + b"".join(b"b%d: &b%d [*b%d, *b%d]\n" % (n, n, n - 1, n - 1) for n in range(1, 40))
_PROFILE = b"stage,instruction,frequency,time,energy\n0,forward,1410,5e-324,1\n"
DIRECTORY = [
    Fault("C directory", "daemon killed", happens=_sends(signal.SIGKILL, "daemon"), **_DAEMON, quick=True),
    Fault("C directory", "daemon stopped", happens=_sends(signal.SIGSTOP, "daemon"), **_DAEMON),
    *(
        Fault("C directory", f"{number.name} to the daemon", happens=_sends(number, "daemon"), **_DAEMON)
        for number in (signal.SIGHUP, signal.SIGTERM)
    ),
    *(
        Fault(
            "C directory",
            f"{name}, {by}",
            happens=act,
            has_daemon=has_daemon,
            needs=needs,
            quick=(name, has_daemon) == ("directory removed", False),
        )
        for name, act, needs in (
            ("directory removed", _is_removed, lambda: ""),
            ("directory renamed", _goes_away, lambda: ""),
            ("directory may not be entered", _may_not_be_entered, lambda: ""),
            ("directory hangs", _hangs, _root),
            ("all locks held", _locks, lambda: ""),
            (
                "every record is garbage",
                _garbage(b"\0\xff" * 500_000, "*.json", "jobs/*/*.json", "jobs/*/*/*.json"),
                lambda: "",
            ),
            (
                "every record is deep",
                _garbage(b"[" * 100_000, "*.json", "jobs/*/*.json", "jobs/*/*/*.json"),
                lambda: "",
            ),
            ("forged current.json", _forged, lambda: ""),
            ("schedule.yaml with a bad tag", _writes("schedule.yaml", b'all: !!int ""\n'), lambda: ""),
            ("schedule.yaml of 60,000 brackets", _writes("schedule.yaml", b"[" * 60_000), lambda: ""),
            ("schedule.yaml with aliases of aliases", _writes("schedule.yaml", _LAUGHS), lambda: ""),
        )
        for has_daemon, by in ((False, "no daemon"), (True, "daemon"))
    ),
    Fault("C directory", "directory hangs from the start", prepare=_hangs, needs=_root),
    Fault("C directory", "no space from the start", prepare=_fills_up, needs=_root),
    Fault("C directory", "site.yaml with a bad tag", prepare=_writes("site.yaml", b'coordination: !!int ""\n')),
    Fault("C directory", "site.yaml of 16,000 brackets", prepare=_writes("site.yaml", b"[" * 16_000), quick=True),
    Fault("C directory", "2,000 profiles of others", prepare=_many_profiles),
    Fault(
        "C directory", "a profile that underflows", prepare=_writes("profiles/zz/2027-01-01-00-00-00+x.csv", _PROFILE)
    ),
]


# ---- GPU driver

_UUID = "GPU-aaaa1111-0000"
NOT_SUPPORTED, NO_PERMISSION, GPU_LOST, NOT_READY, UNKNOWN = 3, 4, 15, 27, 999
_LOCK, _RESET = "nvmlDeviceSetGpuLockedClocks", "nvmlDeviceResetGpuLockedClocks"
_ENERGY, _MEMORY = "nvmlDeviceGetTotalEnergyConsumption", "nvmlDeviceGetSupportedMemoryClocks"


def _driver(name: str, *, quick: bool = False, lowered: bool = True, **odd: Any) -> Fault:
    def prepare(job: Job) -> None:
        odd_driver = json.dumps({**odd, "log": str(job.folder / "driver.log")})
        path = os.pathsep.join((str(HERE / "odd_driver"), str(ROOT / "tests"), str(ROOT)))
        job.environment.update(PFO_FS_GPU=f"nvml:{_UUID}", ODD_NVML=odd_driver, PYTHONPATH=path)

    return Fault("E driver", name, prepare=prepare, happens=(lambda _: None) if lowered else None, quick=quick)


DRIVER = [
    _driver("nothing odd"),
    _driver("no list of memory clocks", fails={_MEMORY: NOT_SUPPORTED}, lowered=False),
    _driver("one lock fails", once={_LOCK: [1, UNKNOWN, 2]}, quick=True),
    _driver("no lock is allowed", fails={_LOCK: NO_PERMISSION}, lowered=False),
    _driver("the first resets fail", once={_RESET: [1, UNKNOWN, 3]}),
    _driver("one energy reading fails", once={_ENERGY: [20, NOT_READY, 3]}),
    _driver("the energy counter is missing", fails={_ENERGY: NOT_SUPPORTED}),
    _driver("the energy counter says 999", fails={_ENERGY: UNKNOWN}),
    _driver("the energy counter restarts", energy="restarts"),
    _driver("the energy counter stands still", energy="stands still"),
    _driver("each lock takes 2 s", hangs={_LOCK: 2.0}),
    _driver("each energy reading takes 1 s", hangs={_ENERGY: 1.0}),
    _driver("the driver does not start", fails={"nvmlInit": NOT_READY}, lowered=False),
    _driver("the GPU is lost", fails={"nvmlDeviceGetHandleByUUID": GPU_LOST}, lowered=False),
    _driver("an old pynvml without event reasons", missing=["nvmlDeviceGetCurrentClocksEventReasons"]),
    _driver("an old pynvml without locked clocks", missing=[_LOCK, _RESET], lowered=False),
    _driver(
        "an old pynvml without power limits",
        missing=[
            "nvmlDeviceGetPowerManagementLimit",
            "nvmlDeviceSetPowerManagementLimit",
            "nvmlDeviceGetPowerManagementLimitConstraints",
        ],
    ),
]


def _midway(what: str) -> Fault:
    def happens(job: Job) -> None:
        for page in job.pages:
            page[MIDWAY] = 1

    return Fault("F program", f"training {what}", {"midway": what}, happens=happens)


PROGRAM = [
    _midway(what)
    for what in (
        "closes descriptors",
        "reuses descriptors",
        "no more descriptors",
        "signals every ms",
        "forks",
        "calls out of order",
        "names that are none",
        "another directory",
    )
]
NOTHING = Fault("no fault", "two jobs side by side", happens=lambda _: None, quick=True)
FAULTS = [NOTHING, *SET_UP, *CHILDREN, *DIRECTORY, *DRIVER, *PROGRAM]
