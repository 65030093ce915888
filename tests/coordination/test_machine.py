"""Two daemons, one job, and whatever can go wrong between them, in any order, on a virtual clock.

What must always be true is written down once, in the methods of `Cluster` that begin with `check`.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from clock import Clock
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from jobs import index_of, make_job, rank_infos, register, write_step

from pfo_fs.coordination import Coordinator
from pfo_fs.coordination.leader import Leader
from pfo_fs.coordination.policy_runner import replay
from pfo_fs.coordination.policy_start import policy_name
from pfo_fs.coordination.progress import PollPace
from pfo_fs.coordination.publication import Publication
from pfo_fs.coordination.rank_registry import RankRegistry
from pfo_fs.coordination.results import Results
from pfo_fs.errors import StoreError
from pfo_fs.models import FrequencySchedule, ProfilingResult
from pfo_fs.scheduler import FrequencyScheduler, ScheduleGenerator, ScheduleRequest
from pfo_fs.settings import PFOSettings
from pfo_fs.store import Files, JobFolder, SharedDirectory, bodies
from pfo_fs.store.file_systems import SystemCalls

INFOS = rank_infos(1, 2)
LEASE_S = 3.0
WINDOWS = 4
LONGEST_PAUSE_S = 60.0
TURNS, UNTIL = "all: 1200\nturns: [1, 2, 3, 0]\n", "all: 1200\nuntil: {}\n"


class Learner(FrequencyScheduler):
    """Measures a few windows, then runs; its clocks depend on all results so far and on the target."""

    def _run(self) -> ScheduleGenerator:
        self.seen: list[tuple[int, float]] = []
        while True:
            mhz = 1200 + 15 * (round(sum(time_s for _, time_s in self.seen)) % 10)
            clocks = [("forward", mhz), ("backward", mhz)]
            schedules = [FrequencySchedule(rank=info.rank, frequencies=clocks) for info in self.rank_infos]
            measures = len(self.seen) < 2 * WINDOWS
            turns = (1, 2, 3, 0) if len(self.seen) % 4 else ()
            results = yield ScheduleRequest(schedules, "measure" if measures else "run", turns=turns, steps=8)
            for result in results:
                key = result.rank, result.iter_time[0]
                assert key not in self.seen, f"{key} was observed twice"
                self.seen.append(key)

    def _for_plan_inputs(self, yielded: ScheduleRequest) -> ScheduleRequest:
        if self.plan_inputs.target is None:
            return yielded
        slower = [
            one.model_copy(update={"frequencies": [(name, mhz - 600) for name, mhz in one.frequencies]})
            for one in yielded.schedules
        ]
        return replace(yielded, schedules=slower)


class Unreliable(SystemCalls):
    """A file system that refuses everything while `refuses` is set."""

    refuses = False

    def __init__(self) -> None:
        for name in ("open", "read", "write", "fsync", "replace", "rename", "link", "mkdir", "listdir"):
            setattr(self, name, partial(self._call, getattr(SystemCalls, name)))

    def _call(self, real: Callable[..., Any], *args: Any, **options: Any) -> Any:
        if self.refuses:
            raise OSError(errno.EROFS, "read-only")
        return real(*args, **options)


class FakeDaemon:
    """One daemon without threads: what its loop and its looks do, one step at a time."""

    def __init__(self, cluster: Cluster) -> None:
        self.calls = Unreliable()
        self.shared = SharedDirectory(Files(cluster.root, calls=self.calls), "daemon")
        self.leader = Leader(self.shared, LEASE_S, "Learner", 1.0, cluster.clock)
        self.coordinator: Coordinator | None = None
        self.all_coordinators: list[Coordinator] = []  # those of earlier leaderships may still run in a thread
        self._cluster = cluster
        self._served: object = None

    def turn(self) -> None:
        try:
            self.leader.poll()
        except StoreError:
            self.leader.forget_silence()
            return
        leadership = self.leader.leadership
        if leadership is not self._served:
            self._served, self.coordinator = leadership, None
            if leadership is not None:
                generation = leadership.generation
                self.coordinator = Coordinator(
                    self.shared.job(self._cluster.folder.job_id),
                    self._cluster.settings,
                    kind="daemon",
                    generation=generation,
                    still_leads=leadership.holds,
                    on_publish=lambda number, *_: self._cluster.published(number, generation),
                    monotonic=self._cluster.clock,
                )
                self.all_coordinators.append(self.coordinator)
        if self.coordinator is not None:
            pause_s = self.coordinator.poll()
            assert 0 <= pause_s <= LONGEST_PAUSE_S, "every wait is bounded"


class Cluster(RuleBasedStateMachine):
    """The shared directory of one job, its ranks, and two places where a daemon may run."""

    def __init__(self) -> None:
        super().__init__()
        self.base = Path(tempfile.mkdtemp(prefix="pfo-fs-test-"))
        self.root = self.base / "pfo"
        self.clock = Clock()
        self.settings = PFOSettings(scheduler=f"{Learner.__module__}:Learner")
        self.folder: JobFolder = make_job(self.root, 1, 2)
        self.job = self.folder.read_job()
        register(self.folder, INFOS)
        self.daemons: list[FakeDaemon | None] = [None, None]
        self.written: list[tuple[int, int]] = []  # number and generation of each schedule, as they were published
        self.step = 0
        self.away = False

    def teardown(self) -> None:
        try:
            self.all_is_well_in_the_end()
        finally:
            shutil.rmtree(self.base)

    # ---- daemons

    @initialize()
    def one_daemon_leads(self) -> None:
        self.start(0)
        self.turns([0, 0], 0.5)

    @rule(place=st.integers(0, 1))
    def start(self, place: int) -> None:
        if self.daemons[place] is None:
            self.daemons[place] = FakeDaemon(self)

    @rule(place=st.integers(0, 1))
    def kill(self, place: int) -> None:
        """As SIGKILL: nothing is said."""
        self.daemons[place] = None

    @rule(place=st.integers(0, 1))
    def stop(self, place: int) -> None:
        daemon = self.daemons[place]
        if daemon is not None:
            with suppress(StoreError):
                daemon.leader.resign()
            self.daemons[place] = None

    @rule(places=st.lists(st.integers(0, 1), min_size=1, max_size=8), pause_s=st.sampled_from([0.1, 0.5, 1.5]))
    def turns(self, places: list[int], pause_s: float) -> None:
        """Daemons run; one that is left out for long is stopped, or its host is slow."""
        for place in places:
            daemon = self.daemons[place]
            if daemon is not None:
                daemon.turn()
            self.clock.now += pause_s

    @precondition(lambda self: not self.away)
    @rule(place=st.integers(0, 1), which=st.integers(0, 3), looks=st.integers(1, 4))
    def a_thread_goes_on_late(self, place: int, which: int, looks: int) -> None:
        """A coordinator goes on, with results that have come, before its daemon has looked whether it still leads."""
        daemon = self.daemons[place]
        if daemon is not None and daemon.all_coordinators:
            for rank in (0, 1):
                self.report(rank, damaged=False)
            for _ in range(looks):
                daemon.all_coordinators[which % len(daemon.all_coordinators)].poll()

    @rule(silent=st.integers(0, 1))
    def the_other_daemon_takes_over(self, silent: int) -> None:
        """One daemon is stopped for as long as the other needs to take it for dead."""
        self.start(1 - silent)
        for _ in range(3):
            self.turns([1 - silent] * 2, LEASE_S / 4)

    @precondition(lambda self: not self.away)
    @rule(steps=st.integers(1, 50))
    def a_window_is_measured(self, steps: int) -> None:
        self.turns([0, 1], 0.5)
        self.train(steps)
        for rank in (0, 1):
            self.report(rank, damaged=False)
        self.turns([0, 1], 0.5)

    @rule(seconds=st.sampled_from([1.0, 5.0, 15.0, 100.0]))
    def time_passes(self, seconds: float) -> None:
        self.clock.now += seconds

    @rule(place=st.integers(0, 1), refuses=st.booleans())
    def file_system(self, place: int, refuses: bool) -> None:
        daemon = self.daemons[place]
        if daemon is not None:
            daemon.calls.refuses = refuses

    # ---- ranks

    @precondition(lambda self: not self.away)
    @rule(rank=st.integers(0, 1), damaged=st.sampled_from([False, False, False, True]))
    def report(self, rank: int, damaged: bool) -> None:
        """A rank has measured the schedule in force; ranks may be late, or never report."""
        current = self.folder.read(bodies.CurrentBody)
        if (
            current is None
            or current.number < 0
            or rank in self.folder.numbers(bodies.ResultsBody, number=current.number)
        ):
            return  # a result is written once: a file that a daemon has read does not change
        result = ProfilingResult(rank=rank, iter_time=[current.number + 1 + rank / 10], iter_energy=[1.0])
        self.folder.write_results(current.number, [bodies.ResultBody(result=result)])
        if damaged:
            (self.root / self.folder.path / "prof" / str(current.number) / f"{rank}.json").write_text("junk")

    @precondition(lambda self: not self.away)
    @rule(steps=st.integers(1, 200))
    def train(self, steps: int) -> None:
        self.step += steps
        current = self.folder.read(bodies.CurrentBody)
        follows = current is not None and current.number >= 0 and self.step >= current.start_step
        write_step(self.folder, self.step, number=current.number if current is not None and follows else -1)

    # ---- people

    @precondition(lambda self: not self.away)
    @rule(text=st.sampled_from(["all: 1200\n", "target: {{slowdown: 1.1}}\n", "all: [\n", "", TURNS, UNTIL]))
    def write_yaml(self, text: str) -> None:
        (self.root / self.folder.path / "schedule.yaml").write_text(text.format(self.step + 60))

    @precondition(lambda self: not self.away)
    @rule()
    def remove_yaml(self) -> None:
        (self.root / self.folder.path / "schedule.yaml").unlink(missing_ok=True)

    @rule()
    def folder_goes_or_comes_back(self) -> None:
        path = self.root / self.folder.path
        if self.away:
            os.rename(self.base / "away", path)
        else:
            os.rename(path, self.base / "away")
        self.away = not self.away

    # ---- what must be true

    def published(self, number: int, generation: int) -> None:
        if self.folder.read(bodies.IndexBody, number=number) is None:
            return  # offered to the ranks of a `local` job, but the directory did not take it
        assert generation == SharedDirectory(self.folder.files).leaders.poll()[0], "only the newest leader publishes"
        assert not self.written or number > self.written[-1][0], "numbers ascend"
        assert not self.written or generation >= self.written[-1][1], "an older leader does not publish after a newer"
        self.written.append((number, generation))

    @invariant()
    def check_that_each_generation_has_one_leader(self) -> None:
        leads = [daemon.leader.leadership for daemon in self.daemons if daemon is not None]
        generations = [leadership.generation for leadership in leads if leadership is not None]
        assert len(generations) == len(set(generations))

    @invariant()
    def check_that_committed_schedules_have_no_gaps_one_writer_each_and_followers_that_stay(self) -> None:
        if self.away:
            return
        numbers = self.folder.schedule_numbers()
        indexes = {n: index for n in numbers if (index := self.folder.read(bodies.IndexBody, number=n))}
        assert list(indexes) == list(range(len(indexes))) == [number for number, _ in self.written]
        for number, index in indexes.items():
            if index.until and index.after >= 0:
                assert index.after <= number
                assert indexes[index.after].stays

    @invariant()
    def check_that_a_replayed_scheduler_asks_for_what_the_one_before_published(self) -> None:
        if self.away or self.job is None:
            return
        publication = Publication(self.folder, 0, PollPace(1.0, remote=False, adapts=False, now=0.0))
        publication.restore(policy_name(self.settings.scheduler, {}))
        made = publication.made
        if not made:
            return
        ranks = RankRegistry(self.folder)
        ranks.by_rank = {info.rank: info for info in INFOS}
        scheduler = Learner(self.job.job_info, INFOS, self.settings)
        scheduler.request()
        results = Results(self.folder, ranks)
        # Without what was published: the scheduler has to come to it by itself.
        replay(scheduler, made, lambda one, number: one.observe(results.read(number)), lambda number: None)
        number, source = list(made.items())[-1]
        request = scheduler.request()
        assert request.revision == source.revision
        index = index_of(self.folder, number)
        for schedule in request.schedules:
            committed = self.folder.read_schedule(index, INFOS[schedule.rank])
            assert committed is not None
            assert committed.frequencies == schedule.frequencies

    def all_is_well_in_the_end(self) -> None:
        """Once nothing goes wrong any more, a daemon leads and the scheduler gets on, within a bounded time."""
        if self.away:
            self.folder_goes_or_comes_back()
        (self.root / self.folder.path / "schedule.yaml").unlink(missing_ok=True)
        if not any(self.daemons):
            self.start(0)
        for daemon in self.daemons:
            if daemon is not None:
                daemon.calls.refuses = False
        for _ in range(200):
            self.turns([0, 1], 0.5)
            self.train(10)
            for rank in (0, 1):
                self.report(rank, False)
            schedulers = [
                daemon.coordinator.scheduler
                for daemon in self.daemons
                if daemon is not None and daemon.coordinator is not None
            ]
            self.check_that_a_replayed_scheduler_asks_for_what_the_one_before_published()
            if any(isinstance(one, Learner) and len(one.seen) >= 2 * WINDOWS for one in schedulers):
                return
        raise AssertionError("no daemon has brought the job to its end")


TestCluster = pytest.mark.slow(Cluster.TestCase)
TestCluster.settings = settings(max_examples=30, stateful_step_count=40, suppress_health_check=list(HealthCheck))
