"""Writes the metrics file of the daemon at a steady pace, also while the shared directory hangs."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from queue import Empty, SimpleQueue

from pfo_fs.errors import ConfigError
from pfo_fs.reports.metrics import FigureReader, Figures, registry_of
from pfo_fs.store import SharedDirectory

log = logging.getLogger(__name__)

_MOST_JOBS_PER_S = 5
"""About so many jobs are read per second, however short the interval: each takes some ten file operations."""


class MetricsFile:
    """A file for the textfile collector of Prometheus's node exporter.

    Its threads end with the process. They never delay the daemon's loop: they read the directory on their own.

    Args:
        path: The file; its name ends in `.prom`, as the collector wants.
        shared: The directory.
        leads: Returns whether this daemon is the leader.
        every_s: Seconds between two versions of the file.

    Raises:
        ConfigError: `prometheus_client` is not installed, the name ends otherwise, or there is no such folder.
    """

    def __init__(self, path: Path, shared: SharedDirectory, leads: Callable[[], bool], every_s: float) -> None:
        try:
            import prometheus_client  # noqa: F401
        except ImportError as error:
            raise ConfigError("--metrics-file needs prometheus_client: pip install 'pfo-fs[metrics]'") from error
        if path.suffix != ".prom":
            raise ConfigError(f"--metrics-file: {path} must end in .prom, or the node exporter does not read it")
        if not path.parent.is_dir():
            raise ConfigError(f"--metrics-file: there is no folder {path.parent}")
        self._path, self._leads, self._every_s = path, leads, every_s
        self._reader = FigureReader(shared)
        self._found: SimpleQueue[Figures] = SimpleQueue()
        self._stopped = threading.Event()
        self._writing = threading.Lock()
        self._problem = ""

    def start(self) -> None:
        """Begins to write the file."""
        threading.Thread(target=self._run, name="metrics file", daemon=True).start()

    def stop(self) -> None:
        """Removes the file, so that figures of a daemon that has ended are not read for present ones."""
        with self._writing:
            self._stopped.set()
            try:
                self._path.unlink(missing_ok=True)
            except OSError as error:
                log.warning("%s cannot be removed: %s", self._path, error.strerror)

    def _run(self) -> None:
        reading, pause_s, last = False, 0.0, Figures(leads=False)
        while not self._stopped.wait(pause_s):
            if not reading:
                threading.Thread(target=self._read, name="figures of jobs", daemon=True).start()
            try:
                last, reading = self._found.get(timeout=self._every_s), False
                pause_s = max(self._every_s, len(last.jobs) / _MOST_JOBS_PER_S)
            except Empty:
                last, reading, pause_s = last.without_jobs(self._leads()), True, 0.0
            with self._writing:
                if not self._stopped.is_set():
                    self._write(last)

    def _read(self) -> None:
        try:
            found = self._reader.read(self._leads())
        except Exception:  # the thread's end must be noticed, or no figures are read any more
            log.exception("the figures of %s", self._path)
            found = Figures(self._leads())
        self._found.put(found)

    def _write(self, figures: Figures) -> None:
        from prometheus_client import write_to_textfile

        problem = ""
        try:
            write_to_textfile(str(self._path), registry_of(figures))
        except OSError as error:
            problem = f"{self._path} cannot be written: {error.strerror}"
        if problem and problem != self._problem:
            log.warning("%s; jobs are scheduled all the same", problem)
        self._problem = problem
