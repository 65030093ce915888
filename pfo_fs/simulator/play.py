"""Plays a whole job in virtual time: the real store, coordinator, scheduler, planner and meter on a simulated cluster.

Only training, its processes and time are simulated. The records in the directory are those of a real job, so
`pfo-fs status`, `report` and `trace` work on it.
"""

from collections.abc import Callable, Iterator
from dataclasses import InitVar, dataclass, field
from pathlib import Path
from typing import NamedTuple

from pfo_fs.coordination import Coordinator
from pfo_fs.errors import RecordError
from pfo_fs.settings import PFOSettings
from pfo_fs.simulator.cluster import Cluster
from pfo_fs.simulator.meters import PlayedStep, SimulatedMeters
from pfo_fs.simulator.ranks import RankSchedules, SimulatedRanks
from pfo_fs.store import JobFolder, SharedDirectory, bodies

_LOOKS_S = (0.3, 1.3, -0.3)
"""When the daemon polls the directory, in s after the begin of an iteration, or before its end if negative."""
_LEAD_S = 1.5


class Iteration(NamedTuple):
    """One iteration.

    Attributes:
        spans_s: For each pipeline, the time to the end of its last instruction.
        full_time_s, full_energy_j: Time and energy of the same iteration at max clocks: with the same
            variation, jitter and power drift.
    """

    step: int
    number: int
    time_s: float
    energy_j: float
    spans_s: list[float]
    status_text: str
    full_time_s: float
    full_energy_j: float


@dataclass
class Play:
    """One job.

    Args:
        mute_ranks: Ranks whose results never reach the directory.
        without_rights: Ranks whose clocks cannot be set.

    Attributes:
        first_plan: Number of the first schedule that is a plan, not a measuring window; None before that.
    """

    cluster: Cluster
    root: InitVar[Path]
    settings: PFOSettings
    metadata: InitVar[str] = "simulated"
    mute_ranks: set[int] = field(default_factory=set)
    without_rights: InitVar[set[int] | None] = None
    daemon_runs: bool = True
    first_plan: int | None = field(init=False, default=None)
    coordinator: Coordinator = field(init=False)

    def __post_init__(self, root: Path, metadata: str, without_rights: set[int] | None) -> None:
        no_rights = without_rights or set()
        self._ranks = SimulatedRanks(
            self.cluster, str(root), self.settings, metadata, lambda rank: rank not in no_rights
        )
        self._meters = SimulatedMeters(self.cluster, self._ranks.infos, self.settings)
        self._virtual_s = 0.0
        self._step = -1
        self.restart_daemon()

    @property
    def folder(self) -> JobFolder:
        """The job's folder."""
        return self._ranks.folder

    def restart_daemon(self) -> None:
        """Ends the daemon and starts another one, which knows only the records in the directory."""
        fresh = SharedDirectory(self.folder.files, "simulator").job(self.folder.job_id)
        self.coordinator = Coordinator(
            fresh, self.settings, kind="daemon", generation=1, lead_s=_LEAD_S, monotonic=lambda: self._virtual_s
        )

    def run(self, iterations: int, until: Callable[[Iteration], bool] = lambda _: False) -> Iterator[Iteration]:
        """Plays `iterations` iterations, or fewer if `until` returns True for one."""
        for _ in range(iterations):
            iteration = self.step()
            yield iteration
            if until(iteration):
                return

    def step(self) -> Iteration:
        """Plays one iteration."""
        if self._step < 0:
            self._look()
        self._step += 1
        ranks, begin_s = self._ranks, self.cluster.now_s
        played = self.cluster.run(ranks.begin_step(self._step, self._virtual_s))
        counts_for, until = ranks.switcher.measured_number, ranks.switcher.measured_until
        new = PlayedStep(self._step, counts_for, until, begin_s, played, ranks.plans(self._step))
        for rank, report in self._meters.measure(new):
            if rank not in self.mute_ranks:
                ranks.send_from_clocks(rank, report, self._virtual_s)
        for look_s in _LOOKS_S:
            after_s = look_s if look_s > 0 else played.time_s + look_s
            self._virtual_s = max(self._virtual_s, begin_s + min(max(after_s, 0.0), 0.9 * played.time_s))
            self._look()
        self._virtual_s = begin_s + played.time_s
        ranks.report(self._step, played, self._virtual_s)
        spans_s = [float(span_s) for span_s in played.spans_s]
        return Iteration(
            self._step,
            ranks.schedule.number,
            played.time_s,
            played.energy_j,
            spans_s,
            self._status_text(),
            played.full_time_s,
            played.full_energy_j,
        )

    def end(self) -> None:
        """Writes the job's end."""
        self._ranks.end(self._virtual_s)

    def schedules_of(self, number: int) -> RankSchedules:
        """For each pipeline, the (instruction, MHz) of each of its ranks under schedule `number`.

        Raises:
            RecordError: The directory has no such schedule.
        """
        index = self.folder.read(bodies.IndexBody, number=number)
        if index is None:
            raise RecordError(f"{self.folder.path}/sched/{number}: was never committed")
        return self._ranks.by_pipeline(
            {info.rank: self.folder.read_schedule(index, info) for info in self._ranks.infos}
        )

    def _status_text(self) -> str:
        scheduler = self.coordinator.scheduler
        return self.coordinator.message or (scheduler.request().message if scheduler else "")

    def _look(self) -> None:
        """Lets the daemon poll the directory, and then the ranks receive its new schedules."""
        if self.daemon_runs:
            self.coordinator.poll()
        for number in self._ranks.receive(self._virtual_s):
            scheduler = self.coordinator.scheduler
            if self.first_plan is None and scheduler is not None and scheduler.model():
                self.first_plan = number
