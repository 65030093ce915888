"""The ranks of a simulated job and their host's helper: its real state machine and real files, without sockets.

The ranks register, apply the schedules that the helper sends, and report their progress.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence

from pfo_fs.arrays import Array
from pfo_fs.errors import PfoError
from pfo_fs.helper.job import Around
from pfo_fs.helper.operations import DirectoryOperations, Operation
from pfo_fs.helper.state import HelperState
from pfo_fs.ipc import messages as m
from pfo_fs.models import FrequencySchedule, JobInfo, RankInfo
from pfo_fs.settings import PFOSettings
from pfo_fs.simulator.cluster import Cluster, Played
from pfo_fs.store import JobFolder, bodies
from pfo_fs.training.schedule_feed import ScheduleSwitcher
from pfo_fs.turns import half_of

RankSchedules = list[dict[int, Sequence[tuple[str, int]]]]
"""For each pipeline, the (instruction, MHz) of each of its ranks that has a schedule."""
_TOKEN = "simulated"  # noqa: S105  not a secret: the simulation has no sockets
_CLOCKS = 1_000_000
"""Number of the first connection of a clock process; connections of training are numbered by rank."""


class _AroundHelper(Around):
    """Keeps what the helper sends to rank 0, since all ranks of the host get the same, and what its worker is to do."""

    def __init__(self, seed: int) -> None:
        super().__init__(lambda: self.now_s, seed)
        self.now_s = 0.0
        self.sent: list[m.Message] = []
        self.waiting: deque[Operation] = deque()

    def send(self, client: int, message: m.Message) -> None:
        if client == 0:
            self.sent.append(message)

    def run(self, operation: Operation) -> None:
        self.waiting.append(operation)


class SimulatedRanks:
    """All training processes of a job, on one host with one helper.

    Attributes:
        schedule: The schedule in force; its number is -1 if there is none.
        switcher: It tells which schedule a measurement of a step counts for, and when that ends.
    """

    def __init__(
        self,
        cluster: Cluster,
        root: str,
        settings: PFOSettings,
        metadata: str,
        may_set_clocks: Callable[[int], bool],
    ) -> None:
        self._cluster = cluster
        self._stages = stages = len(cluster.pipeline.orders)
        clocks_mhz = list(cluster.truth.clocks_mhz)
        self._gpus = gpus = cluster.gpus_per_rank
        places = [(dp, pp, tp) for dp in range(cluster.pipelines) for pp in range(stages) for tp in range(gpus)]
        self.infos = [
            RankInfo(
                rank=rank,
                dp_rank=dp,
                pp_rank=pp,
                tp_rank=tp,
                available_frequencies=clocks_mhz if may_set_clocks(rank) else [],
            )
            for rank, (dp, pp, tp) in enumerate(places)
        ]
        self._operations = DirectoryOperations(root, "simulator", settings.scheduler)
        self._around = _AroundHelper(cluster.seed)
        self._helper = HelperState(_TOKEN, self._around)
        self.schedule = m.NewSchedule(number=-1)
        self.switcher = ScheduleSwitcher(self._set_schedule, lambda text: None)
        self._clocks: dict[tuple[bool, ...], Array] = {}  # of the schedule in force, by the halves that follow it
        self._helper.begin()
        self._work(0.0)
        self._join(settings, metadata)

    def _join(self, settings: PFOSettings, metadata: str) -> None:
        """Creates the job, which a daemon schedules, connects the processes of all ranks, and registers the ranks."""
        stages, pipelines, cluster = self._stages, self._cluster.pipelines, self._cluster
        shape = JobInfo(
            pp_degree=stages,
            dp_degree=pipelines,
            tp_degree=self._gpus,
            world_size=stages * pipelines * self._gpus,
            job_metadata=metadata,
        )
        job = bodies.JobBody(
            job_info=shape, coordination="daemon", profile_steps=settings.profile_steps, host="simulated"
        )
        attempt = f"seed{cluster.seed}"
        self.send(0, m.Hello(rank=0, role="training", token=_TOKEN), 0.0)
        self.send(0, m.CreateJob(job=job.model_dump(), attempt=attempt), 0.0)
        for info in self.infos:
            rank = info.rank
            if rank:
                self.send(rank, m.Hello(rank=rank, role="training", token=_TOKEN), 0.0)
            self.send_from_clocks(rank, m.Hello(rank=rank, role="clocks", token=_TOKEN), 0.0)
            body = {"rank_info": info.model_dump(), "nonce": f"n{rank}", "gpu_name": cluster.truth.gpu_name}
            join = m.JoinJob(job_id=self.folder.job_id, attempt=attempt, coordination="daemon", rank_body=body)
            self.send(rank, join, 0.0)

    # ---- the helper

    @property
    def folder(self) -> JobFolder:
        """The job's folder."""
        return self._operations.folder

    def send(self, rank: int, message: m.ToHelper, now_s: float) -> None:
        """Sends a message from a training process to the helper."""
        self._around.now_s = now_s
        self._helper.message_arrived(rank, message)
        self._work(now_s)

    def send_from_clocks(self, rank: int, message: m.ToHelper, now_s: float) -> None:
        """Sends a message from a clock process to the helper."""
        self.send(_CLOCKS + rank, message, now_s)

    def _work(self, now_s: float) -> None:
        """Does what is due, and what the worker is to do."""
        self._around.now_s = now_s
        self._helper.time_passed()
        while self._around.waiting:
            operation, result, problem = self._around.waiting.popleft(), None, None
            try:
                result = self._operations.execute(operation)
            except PfoError as error:
                problem = error
            self._helper.operation_done(operation, result, problem)
            self._helper.time_passed()

    # ---- training

    def receive(self, now_s: float) -> list[int]:
        """Keeps the schedules that the helper has sent; returns the numbers of the new ones."""
        self._work(now_s)
        new_numbers = []
        for new in self._around.sent:
            if isinstance(new, m.NewSchedule) and new.number > self.switcher.newest:
                self.switcher.expect(new)
                new_numbers.append(new.number)
        self._around.sent.clear()
        return new_numbers

    def begin_step(self, step: int, now_s: float) -> Array:
        """Applies the schedule that is due at `step`; returns the clocks, for `Cluster.run`."""
        applied = self.switcher.step_begin(step)
        if applied is not None:
            late = 0 < applied.start_step < step
            message = m.ScheduleApplied(number=applied.number, step=step, late=late)
            for info in self.infos:
                self.send(info.rank, message, now_s)
        halves = self._halves(step)
        if halves not in self._clocks:
            self._clocks[halves] = self._cluster.clocks_of(self.by_pipeline(self.plans(step)))
        return self._clocks[halves]

    def _halves(self, step: int) -> tuple[bool, ...]:
        """Whether the even and the odd ranks follow the schedule in force in a step."""
        return tuple(self.switcher.has_turn(step, half) for half in (0, 1))

    def plans(self, step: int) -> dict[int, m.RankPlan | None]:
        """Returns what each rank follows in a step; None: default clocks."""
        halves = self._halves(step)
        return {
            info.rank: self.schedule.plan_of(info.rank) if halves[half_of(info.pp_rank, info.dp_rank)] else None
            for info in self.infos
        }

    def _set_schedule(self, schedule: m.NewSchedule | None) -> None:
        self.schedule, self._clocks = schedule or m.NewSchedule(number=-1), {}

    def by_pipeline(self, schedules: Mapping[int, FrequencySchedule | m.RankPlan | None]) -> RankSchedules:
        """Sorts schedules of ranks by pipeline; a rank whose clocks cannot be set has none."""
        by_pipeline: RankSchedules = [{} for _ in range(self._cluster.pipelines)]
        for info in self.infos:
            schedule = schedules.get(info.rank)
            if schedule is not None and info.available_frequencies:
                by_pipeline[info.dp_rank][info.pp_rank] = schedule.frequencies
        return by_pipeline

    def report(self, step: int, played: Played, now_s: float) -> None:
        """Reports progress and pace of the iteration that ended at `now_s`; after step 0, also the order."""
        if step == 0:
            for stage, order in enumerate(self._cluster.pipeline.orders):
                several = len({instruction.stage for instruction in order}) > 1
                seen = [(i.name, i.stage if several else None) for i in order]
                self.send(stage * self._gpus, m.OrderSeen(instructions=seen), now_s)
        number = self.switcher.measured_number
        last = self._cluster.pipeline.first_nodes[1] - 1  # a pipeline's first rank reports its own last instruction
        for pipeline, span_s in enumerate(played.ends_s[last]):
            report = m.ProgressReport(
                step=step,
                number=number,
                iter_time=played.time_s,
                iteration_times=[(step, number, float(span_s))],
                switching=self._cluster.switching(pipeline, 0),
            )
            self.send_from_clocks(pipeline * self._stages * self._gpus, report, now_s)

    def end(self, now_s: float) -> None:
        """Writes the job's end."""
        self.send(0, m.Goodbye(reason="finished", message="simulated"), now_s)
