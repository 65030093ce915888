"""What the benchmarks share: processes and their cost, the machine, tables, JSON; and a daemon that counts.

Run as a script it is `pfo-fs-daemon` with one addition: it counts its operations on the shared directory, and writes
their number to the file that `BENCH_COUNT` names each time it gets SIGUSR1.
"""

from __future__ import annotations

import json
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from pfo_fs.store.file_reader import FileReader  # noqa: E402

# ---- processes


def cpu_s(pid: int) -> float:
    """Returns the CPU seconds of a process so far, ended threads included, to the nanosecond (Linux)."""
    return time.clock_gettime((~pid << 3) | 2)  # the clock that clock_getcpuclockid(3) returns


def peak_mib(pid: int) -> float:
    """Returns the largest resident memory of a process so far, in MiB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"/proc/{pid}/status has no VmHWM")


def wait_for(ready: Callable[[], bool], what: str, limit_s: float = 60.0) -> None:
    """Waits until `ready()`; RuntimeError after `limit_s` seconds."""
    until = time.monotonic() + limit_s
    while not ready():
        if time.monotonic() > until:
            raise RuntimeError(f"{what}: not within {limit_s:.0f} s")
        time.sleep(0.02)


@contextmanager
def running(command: Sequence[str], log: Path, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process while the block runs, its output in `log`; ended by SIGTERM, in the end by SIGKILL."""
    with log.open("ab") as sink:
        process = subprocess.Popen(command, stdout=sink, stderr=sink, env={**os.environ, **environment})
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextmanager
def running_daemon(
    root: Path, *options: str, count: Path | None = None, log: Path | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A leading `pfo-fs-daemon` of its own; one that counts its operations where `count` is given.

    It finds modules in this folder, for schedulers of a benchmark. Its log is beside `root` unless `log` is given.
    """
    started = [sys.executable, __file__] if count else [sys.executable, "-m", "pfo_fs", "daemon"]
    log = log or root.parent / "daemon.log"
    path = os.pathsep.join(filter(None, (str(HERE.parent), str(HERE), os.environ.get("PYTHONPATH"))))
    environment = {"PYTHONPATH": path, "BENCH_COUNT": str(count or "")}
    with running([*started, str(root), *options], log, **environment) as process:

        def leads() -> bool:
            if process.poll() is not None:
                raise RuntimeError(f"the daemon ended:\n{log.read_text()[-2000:]}")
            return (root / "daemon.json").exists()

        wait_for(leads, "a leading daemon")
        time.sleep(0.5)  # until it watches
        yield process


def operations_of(process: subprocess.Popen[bytes], path: Path) -> int:
    """Returns the number of operations on the directory that a counting daemon has made so far."""
    path.unlink(missing_ok=True)
    process.send_signal(signal.SIGUSR1)
    wait_for(path.exists, "the daemon's count")
    return int(path.read_text())


class Operations:
    """Operations of `Files`: a file that is read or written, a folder that is listed, ... is one."""

    count = 0


def count_operations() -> None:
    """Counts the operations of all `Files` of this process from now on."""
    plain = FileReader._retry

    def counting(self: Any, path: str, once: Callable[[], Any]) -> Any:
        Operations.count += 1
        return plain(self, path, once)

    FileReader._retry = counting  # type: ignore[method-assign]


def counting_daemon() -> None:
    """`pfo-fs-daemon`, counting."""
    target = Path(os.environ["BENCH_COUNT"])

    def tell(*_: object) -> None:
        temp = target.with_suffix(".part")
        temp.write_text(str(Operations.count))
        temp.replace(target)

    signal.signal(signal.SIGUSR1, tell)
    count_operations()
    from pfo_fs.cli import daemon_main

    daemon_main()


# ---- what comes out


def machine(**more: object) -> dict[str, object]:
    """Returns what the figures were measured on."""
    found = {"cpus": os.cpu_count(), "kernel": platform.release(), "python": platform.python_version()}
    with Path("/proc/cpuinfo").open() as lines:
        model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "")
    return {**found, "cpu": model, "load_before": round(os.getloadavg()[0], 2), **more}


def show(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], caption: str = "", width: int = 120
) -> None:
    """Prints a table; the first column is text, the others are numbers."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, caption=caption, caption_justify="left")
    for position, column in enumerate(columns):
        table.add_column(column, justify="right" if position else "left", no_wrap=not position)
    for row in rows:
        table.add_row(*row)
    console = Console()
    (console if console.is_terminal else Console(width=width)).print(table)


def write_json(path: Path | None, about: Mapping[str, object], results: Sequence[Mapping[str, object]]) -> None:
    """Writes the figures, where a file is wanted."""
    if path is not None:
        path.write_text(json.dumps({"machine": about, "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    counting_daemon()
