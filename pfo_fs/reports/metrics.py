"""The figures of a shared directory and its running jobs for Prometheus, in a file: `pfo-fs-daemon --metrics-file`.

The file is written at a steady pace, also while the shared directory hangs.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pfo_fs
from pfo_fs.coordination import read_site_policy
from pfo_fs.errors import ConfigError, RecordError, StoreError
from pfo_fs.models import PlanInputs
from pfo_fs.reports.atomic_output import output_file
from pfo_fs.reports.status import JobStatus, describe_job
from pfo_fs.store import SharedDirectory, layout

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry, Metric

log = logging.getLogger(__name__)

_MOST_JOBS_PER_S = 5
"""About five jobs are read per second, however short the interval: each takes some ten file operations."""
_READ_AFTER_END = 2
"""An ended job is read until it owed nothing this often: what it owes is told within seconds, so by the second time."""
MOST_JOBS = 200
"""The 200 newest running jobs have figures of their own; the others are only counted."""

_JOB = "job_id"
"""The label with a job's id; Prometheus itself gives each figure a label `job`, that of the scrape."""


@dataclass
class Figures:
    """What was read from a shared directory within `read_s` seconds, by a daemon that `leads` or stands by.

    Attributes:
        site_problem: What is wrong with `site.yaml`; empty if nothing is.
        states, jobs: Jobs by state, and those that run or owe an undo; none for a daemon that stands by.
        energy_j: Energy of all GPUs since the daemon has begun to lead, in J, by the iterations that were reported.
        saved_j, added_j: Energy in J that iterations took less than at max clocks, and that others took more.
    """

    leads: bool
    reachable: bool = False
    read_s: float = 0.0
    site_problem: str = ""
    states: Counter[str] = field(default_factory=Counter)
    jobs: list[JobStatus] = field(default_factory=list)
    energy_j: float = 0.0
    saved_j: float = 0.0
    added_j: float = 0.0

    def without_answer(self, leads: bool) -> Figures:
        """Returns what is known while the directory does not answer: energies stay as they were."""
        return Figures(leads, energy_j=self.energy_j, saved_j=self.saved_j, added_j=self.added_j)


class FigureReader:
    """Reads figures again and again, and adds up energies from one time to the next."""

    def __init__(self, shared: SharedDirectory) -> None:
        self._shared = shared
        self._ended: Counter[str] = Counter()  # how often an ended job owed nothing
        self._counted: dict[str, float] = {}  # the energy of each job, in J
        self._last = Figures(leads=False)

    def read(self, leads: bool) -> Figures:
        """Reads the directory; a standby daemon (`leads` is False) reads no jobs, so that no job is counted twice."""
        figures, began = self._last.without_answer(leads), time.monotonic()
        try:
            figures.site_problem = read_site_policy(self._shared).problem
            ids = self._shared.newest_job_ids() if leads else []
            for job_id in ids:
                if self._ended[job_id] == _READ_AFTER_END:
                    continue
                folder = self._shared.job(job_id)
                names = folder.names()
                if layout.JOB in names and len(figures.jobs) == MOST_JOBS:
                    figures.states["not_read"] += layout.END not in names
                elif layout.JOB in names:
                    job = describe_job(folder)
                    self._add_energy(figures, job)
                    if layout.END in names and not job.undo_owed:
                        self._ended[job_id] += 1
                        continue
                    figures.jobs.append(job)
                    figures.states[job.state] += 1
            self._counted = {job_id: self._counted[job_id] for job_id in ids if job_id in self._counted}
            figures.reachable = True
        except (OSError, StoreError, RecordError):
            pass
        figures.read_s, self._last = time.monotonic() - began, figures
        return figures

    def _add_energy(self, figures: Figures, job: JobStatus) -> None:
        if (now_j := job.energy_j) is None:
            return
        energy_j, saved = max(0.0, now_j - self._counted.get(job.job_id, now_j)), job.verdict.saved
        self._counted[job.job_id] = now_j
        figures.energy_j += energy_j
        if saved is not None and saved < 1:
            difference_j = energy_j * saved / (1 - saved)
            figures.saved_j += max(0.0, difference_j)
            figures.added_j += max(0.0, -difference_j)


def _gauges(job: JobStatus) -> dict[str, tuple[str, float | None]]:
    """Returns what is told of a job: meaning and value, None if not known. Metrics' names begin with `pfo_fs_job_`."""
    verdict, current, loads = job.verdict, job.current, job.loads
    inputs = current.source.plan_inputs if current is not None and current.source is not None else PlanInputs()
    slow = len(inputs.slow_pipelines) + (inputs.straggler is not None)
    number = current.number if current is not None and current.number >= 0 else None
    settled = current is not None and current.converged
    saved_error = None if verdict.saved is None else verdict.saved_error
    slower_error = None if verdict.slower is None else verdict.slower_error
    off_target = None if job.model is None else job.model.off_target
    explained, controls = (None, None) if loads is None else (loads.explained, loads.controls)
    is_wrong = any((job.problem, job.last_error, verdict.harm, current and current.yaml_problem))
    return {
        "step": ("Last optimizer step that a rank has reported.", job.step),
        "ranks": ("Number of ranks of the job.", job.job.job_info.world_size if job.job is not None else None),
        "ranks_registered": ("Number of ranks that have registered.", job.ranks_registered),
        "iteration_seconds": ("Time of an iteration of the slowest rank, as last reported.", job.iter_time_s),
        "iteration_joules": ("Energy of all GPUs of the job in an iteration, as last reported.", job.iter_energy_j),
        "joules": ("Energy of all GPUs in all steps.", job.energy_j),
        "energy_saved_ratio": ("Energy saved by the clocks in force, against max clocks.", verdict.saved),
        "more_time_ratio": ("Additional time against max clocks, relative.", verdict.slower),
        "energy_saved_error_ratio": ("Two standard errors of the energy saved.", saved_error),
        "more_time_error_ratio": ("Two standard errors of the time.", slower_error),
        "off_target_ratio": ("Time above the job's target, or above what a target in W needs, relative.", off_target),
        "schedule_number": ("Number of the schedule in force; it changes when a schedule is published.", number),
        "settled": ("1 if the scheduler has measured the schedule in force, and keeps it.", settled),
        "slow_pipelines": ("Number of pipelines that the others wait for.", slow),
        "undo_owed": ("Clocks and power limits that the driver has not put back yet.", job.undo_owed),
        "undo_failures": ("Attempts to put clocks and power limits back that have failed so far.", job.undo_failures),
        "loads_explain_ratio": ("Share of what varies between ranks that loads explain (LoadClocks).", explained),
        "loads_control_steps": ("Steps at max clocks, drawn by chance, to measure others against.", controls),
        "off": ("1 if the job, or every job, is switched off: it runs at default clocks.", job.off),
        "problem": ("1 if a record, a rank, the plan or schedule.yaml has a problem; see `pfo-fs status`.", is_wrong),
    }


def registry_of(figures: Figures) -> CollectorRegistry:
    """Returns the figures as metrics of `prometheus_client`."""
    from prometheus_client import CollectorRegistry

    class _Collector:
        def collect(self) -> Iterator[Metric]:
            yield from _metrics(figures)

    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector())
    return registry


def _metrics(figures: Figures) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily

    def gauge(name: str, text: str, value: float) -> Metric:
        return GaugeMetricFamily(name, text, value=value)

    yield InfoMetricFamily("pfo_fs", "Release of the daemon.", value={"version": pfo_fs.__version__})
    yield gauge("pfo_fs_daemon_leads", "1 if this daemon schedules the jobs; 0: it stands by.", figures.leads)
    reached = "1 if the shared directory could be read within the interval of this file."
    yield gauge("pfo_fs_directory_reachable", reached, figures.reachable)
    yield gauge("pfo_fs_directory_read_seconds", "Time that reading it for this file took.", figures.read_s)
    site = GaugeMetricFamily(
        "pfo_fs_site_problem", "1 if site.yaml has a mistake, which the label tells.", labels=["problem"]
    )
    site.add_metric([figures.site_problem], bool(figures.site_problem))
    yield site
    yield gauge("pfo_fs_written_timestamp_seconds", "Time when this file was written.", time.time())
    counted = "Energy of all GPUs since this daemon leads."
    yield CounterMetricFamily("pfo_fs_gpu_energy_joules", counted, value=figures.energy_j)
    saved = "Energy saved in them against max clocks, by what was measured under each schedule."
    yield CounterMetricFamily("pfo_fs_energy_saved_joules", saved, value=figures.saved_j)
    added = "Energy that iterations took beyond that of max clocks; saved minus added is the net saving."
    yield CounterMetricFamily("pfo_fs_energy_added_joules", added, value=figures.added_j)

    states = GaugeMetricFamily("pfo_fs_jobs", "Jobs not ended, or owing an undo, by state.", labels=["state"])
    for state in sorted({"waiting", "running", "broken", *figures.states}):
        states.add_metric([state], figures.states[state])
    yield states
    about = InfoMetricFamily("pfo_fs_job", "Who runs a job, and its state.", labels=[_JOB])
    for job in figures.jobs:
        about.add_metric([job.job_id], {"user": job.user, "state": job.state})
    yield about
    told = [(job.job_id, _gauges(job)) for job in figures.jobs]
    for name, (text, _) in _gauges(JobStatus(job_id="", off=False)).items():
        family = GaugeMetricFamily(f"pfo_fs_job_{name}", text, labels=[_JOB])
        for job_id, gauges in told:
            if (value := gauges[name][1]) is not None:
                family.add_metric([job_id], value)
        yield family


class MetricsFile:
    """A file for the textfile collector of Prometheus's node exporter.

    Its threads end with the process. They never delay the daemon's loop: they read the directory on their own.

    Args:
        path: The file; its name ends in `.prom`, as the collector wants.
        leads: Returns whether this daemon is the leader.
        every_s: Seconds between two versions of the file.
    """

    def __init__(self, path: Path, shared: SharedDirectory, leads: Callable[[], bool], every_s: float) -> None:
        self._path, self._leads, self._every_s = path, leads, every_s
        self._reader = FigureReader(shared)
        self._last = Figures(leads=False)
        self._stopped = threading.Event()
        self._writing = threading.Lock()
        self._problem = ""

    def start(self) -> None:
        """Begins to write the file."""
        threading.Thread(target=self._run, name="metrics file", daemon=True).start()

    def stop(self) -> None:
        """Removes the file, so that figures of a daemon that has ended are not taken for present ones."""
        with self._writing:
            self._stopped.set()
            try:
                self._path.unlink(missing_ok=True)
            except OSError as error:
                log.warning("%s cannot be removed: %s", self._path, error.strerror)

    def _run(self) -> None:
        reading: threading.Thread | None = None
        pause_s = 0.0
        while not self._stopped.wait(pause_s):
            if reading is None:
                reading = threading.Thread(target=self._read, name="figures of jobs", daemon=True)
                reading.start()
            reading.join(self._every_s)
            if reading.is_alive():
                last, pause_s = self._last.without_answer(self._leads()), 0.0
            else:
                last, reading = self._last, None
                pause_s = max(self._every_s, len(last.jobs) / _MOST_JOBS_PER_S)
            with self._writing:
                if not self._stopped.is_set():
                    self._write(last)

    def _read(self) -> None:
        try:
            self._last = self._reader.read(self._leads())
        except Exception:
            log.exception("the figures of %s", self._path)
            self._last = self._last.without_answer(self._leads())

    def _write(self, figures: Figures) -> None:
        from prometheus_client import generate_latest

        problem = ""
        try:
            with output_file(self._path) as file:
                with suppress(OSError):  # the exporter is another user, and the unit's umask shuts others out
                    os.fchmod(file.fileno(), 0o644)
                file.write(generate_latest(registry_of(figures)).decode())
        except ConfigError as error:
            problem = str(error)
        if problem and problem != self._problem:
            log.warning("%s; jobs are scheduled all the same", problem)
        self._problem = problem
