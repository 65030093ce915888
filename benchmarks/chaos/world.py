"""One fast episode: a job, its hosts and two daemons in virtual time, and what goes wrong with them."""

from __future__ import annotations

import math
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

from benchmarks.chaos.actors import PROFILE_STEPS, Client, DaemonPlace, HostPlace, Operations, Place, Rank
from benchmarks.chaos.faults import ERRORS
from benchmarks.chaos.policies import Learner
from pfo_fs.helper.state import HelperState
from pfo_fs.ipc import messages as m
from pfo_fs.models import JobInfo, RankInfo
from pfo_fs.settings import PFOSettings
from pfo_fs.store import bodies

LEASE_S = 3.0
IDLE_S = 300.0
_CLOCKS_MHZ = list(range(1410, 195, -15))
_ANSWERS_WITHIN_S = 20.0


class AtOnce:
    """Runs the polls of jobs at once, in place of the daemon's threads (`served_jobs.Workers`)."""

    busy = waits = False

    def __init__(self, most: int) -> None:
        pass

    def start(self, call: Callable[[], None]) -> None:
        call()

    def retry(self) -> None:
        pass

    def close(self) -> None:
        pass


class Waiting:
    """The time of one who waits: it passes at once where that sleeps, and nowhere else."""

    now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


class World:
    """See the module's docstring.

    Args:
        seed: Everything that happens follows from it.
        root: An empty folder, best in memory.
    """

    def __init__(self, seed: int, root: Path) -> None:
        self.random = random = Random(seed)
        self._terms = Random(seed)  # of its own, so that known seeds play what they did before there were terms
        self.root = str(root / "pfo")
        self.now_s = 1000.0
        self.settings = PFOSettings(
            scheduler=f"{Learner.__module__}:Learner",
            lease_timeout=LEASE_S,
            max_job_idle_time=IDLE_S,
            profile_steps=PROFILE_STEPS,
            watch="poll",
        )
        self.is_local_mount = random.random() < 0.5
        self.links = random.random() < 0.7
        self.tick_s, self.lead_s = (0.25, 1.0) if self.is_local_mount else (1.0, 5.0)
        self.step_s = self.tick_s * random.choice((1, 2))
        self.current: Operations | None = None
        self.coordination = "off"
        self.job_id = ""
        self.step_number = 0
        self.step_at_s: dict[int, float] = {}
        self.trouble_until_s = -math.inf
        self.in_trouble: set[int] = set()  # steps at which a host or a daemon may have been late for a good reason
        self.ended_by = ""
        self.killed_helpers: list[HelperState] = []
        self.helper_of_rank_0: HelperState | None = None  # the one that rank 0 was connected to when training ended
        self.calm: bool | None = None
        self.offered = self.broadcast = None  # type: bytes | None
        self.broadcast_step = -1
        self.faults: list[str] = []
        self.changed: dict[str, tuple[float, float]] = {}  # of a file, its time and the world's when that was seen
        self.daemons = [DaemonPlace(self), DaemonPlace(self)]
        self.hosts = [HostPlace(self, 0), HostPlace(self, 1)]
        self.depth = 0
        self._training_s = 0.0
        infos = [
            RankInfo(rank=rank, dp_rank=0, pp_rank=rank, tp_rank=0, available_frequencies=_CLOCKS_MHZ)
            for rank in range(random.choice((2, 2, 3)))
        ]
        self.ranks = [Rank(self, self.hosts[0 if info.rank == 0 else 1], info) for info in infos]

    def time(self) -> float:
        return self.now_s

    @property
    def places(self) -> list[Place]:
        return [*self.daemons, *self.hosts]

    # ---- time

    def tick(self) -> None:
        """Lets all processes that run do what is due, and training go on."""
        self.now_s += self.tick_s
        for place in self.daemons:
            place.turn()
        for host in self.hosts:
            host.turn()
        self._watch_trouble()
        self._train()

    def _watch_trouble(self) -> None:
        late = any(host.is_impaired for host in self.hosts) or any(
            place.is_there and (place.is_frozen or not place.calls.is_healthy) for place in self.daemons
        )
        clients = [rank.link.client for rank in self.ranks if rank.is_training]
        late = late or any(isinstance(client, Client) and client.helper is None for client in clients)
        if late or self.depth:
            self.trouble_until_s = self.now_s + 3 * self.lead_s

    def freeze_inside(self, place: Place) -> None:
        """The process is stopped between two system calls: the others go on meanwhile."""
        if self.depth:
            return
        frozen_s = self.random.choice((0.5, 2.0, 6.0, 12.0))
        self.depth, place.frozen_until_s, place.is_inside = 1, self.now_s + frozen_s, True
        current = self.current
        while self.now_s < place.frozen_until_s:
            self.tick()
        self.depth, self.current, place.is_inside = 0, current, False
        self._watch_trouble()

    def _train(self) -> None:
        if self.coordination == "off" or self.ended_by or not self.ranks[0].feed:
            return
        if any(rank.is_frozen for rank in self.ranks):
            return
        self._training_s += self.tick_s
        while self._training_s >= self.step_s:
            self._training_s -= self.step_s
            step = self.step_number
            if self.broadcast_step < step and self.offered is not None:
                self.broadcast, self.offered, self.broadcast_step = self.offered, None, step + 1
            for rank in self.ranks:
                rank.step(step)
            self.step_at_s[step] = self.now_s
            if self.now_s < self.trouble_until_s:
                self.in_trouble.add(step)
            self.step_number += 1

    # ---- the job

    def begin(self) -> None:
        """Makes the job and lets all ranks join, as `training/joining.py` does."""
        first = self.ranks[0]
        first.link.client = Client(first.host, 0, may_start=True)
        size = len(self.ranks)
        info = JobInfo(pp_degree=size, dp_degree=1, tp_degree=1, world_size=size)
        mode = self.random.choice(("daemon", "daemon", "auto", "local"))
        body = bodies.JobBody(job_info=info, coordination=mode, profile_steps=PROFILE_STEPS)
        created = self._ask(first, m.CreateJob(job=body.model_dump(), attempt="attempt"), m.JobCreated)
        if not created:
            self.coordination, self.ended_by = "off", "no job"
            return
        self.job_id = created.job_id
        self.coordination = created.coordination
        for rank in self.ranks:
            body_of_rank = {"rank_info": rank.info.model_dump(), "nonce": f"n{rank.number}"}
            join = m.JoinJob(
                job_id=self.job_id,
                directory_id=created.directory_id,
                attempt="attempt",
                coordination=self.coordination,  # type: ignore[arg-type]
                rank_body=body_of_rank,
            )
            rank.link.keep(join)
            if rank.link.client is None:
                starts = all(other.host is not rank.host for other in self.ranks[: rank.number])
                rank.link.client = Client(rank.host, rank.number, may_start=starts)
            joined = self._ask(rank, join, m.Joined)
            if joined:
                rank.link.note_joined(joined)
        if self.coordination == "local":
            first.link.send_kept(m.AllRanks(rank_infos=[rank.info.model_dump() for rank in self.ranks]))
        for rank in self.ranks:
            rank.make_feed(self.coordination)

    def _ask(self, rank: Rank, message: m.Message, reply: type[Any]) -> Any:
        """Returns the helper's answer; None if it refuses, dies, or takes too long."""
        client = rank.link.client
        assert client is not None
        client.send(message)
        until_s = self.now_s + _ANSWERS_WITHIN_S
        while self.now_s < until_s:
            self.tick()
            self.something_may_happen(0.05)
            while (found := client.poll()) is not None:
                if isinstance(found, reply):
                    return found
                if isinstance(found, m.Refused):
                    return None
                rank.link.put_back(found)
            if client.lost:
                return None
        return None

    # ---- what happens

    def something_may_happen(self, share: float) -> None:
        """Makes one thing go wrong, or right again, with a chance of `share`."""
        random = self.random
        if random.random() >= share:
            return
        kind = random.choices(("daemon", "host", "rank", "people"), (5, 5, 2, 1))[0]
        if kind == "daemon":
            self._trouble_of(random.choice(self.daemons))
        elif kind == "host":
            self._trouble_of(random.choice(self.hosts))
        elif kind == "rank":
            rank = random.choice(self.ranks)
            if random.random() < 0.5:
                rank.frozen_until_s = self.now_s + random.choice((1.0, 5.0))
                self.note(f"rank {rank.number} is stopped")
            else:
                rank.kill_clocks()
                self.note(f"the clock process of rank {rank.number} is killed")
        elif self.job_id:
            path = Path(self.root) / "jobs" / self.job_id / "schedule.yaml"
            if path.parent.is_dir():
                text = random.choice(("all: 1200\n", "target: {slowdown: 1.1}\n", "all: [\n", ""))
                if text == "all: 1200\n":
                    text += self._terms.choice(("", "turns: [1, 2, 3, 0]\n", f"until: {self.step_number + 60}\n"))
                path.write_text(text) if text else path.unlink(missing_ok=True)
                self.note(f"schedule.yaml is {text!r}")

    def _trouble_of(self, place: Place) -> None:
        random, calls = self.random, place.calls
        what = random.choice(("kill", "start", "stop", "freeze", "dies", "freezes", "files", "files", "old", "heal"))
        if what == "kill" and place.is_there:
            place.kill()
        elif what == "start" and isinstance(place, DaemonPlace) and not place.is_frozen:
            place.start()
        elif what == "stop" and isinstance(place, DaemonPlace) and not place.is_frozen:
            place.stop()
        elif what == "freeze":
            place.frozen_until_s = max(place.frozen_until_s, self.now_s + random.choice((0.5, 2.0, 6.0, 12.0)))
        elif what == "dies":
            calls.dies_in = random.randint(1, 25)
        elif what == "freezes":
            calls.freezes_in = random.randint(1, 150)
        elif what == "files":
            calls.error, calls.share = random.choice(ERRORS), random.choice((0.05, 0.3, 1.0))
        elif what == "old":
            calls.forgets = 0.5
        elif what == "heal":
            calls.heal()
        name = f"daemon {self.daemons.index(place)}" if isinstance(place, DaemonPlace) else "host"
        self.note(f"{name}{getattr(place, 'number', '')}: {what}")

    def note(self, text: str) -> None:
        self.faults.append(f"{self.now_s - 1000:.2f} s, step {self.step_number}: {text}")

    def heal(self) -> None:
        """Ends all faults; a daemon runs, unless rank 0 schedules."""
        self.note("all faults end")
        for place in self.places:
            place.calls.heal()
            place.frozen_until_s = -math.inf
        for rank in self.ranks:
            rank.frozen_until_s = -math.inf
        if not any(place.is_there for place in self.daemons):
            self.daemons[0].start()

    # ---- the end

    def end_training(self, reason: str) -> None:
        """Training ends: `finished`, `killed` (one rank, and the others follow), or `terminated` by SIGTERM."""
        self.note(f"training is {reason}")
        self.ended_by = reason
        client = self.ranks[0].link.client
        self.helper_of_rank_0 = client.helper if isinstance(client, Client) else None
        if reason == "terminated":
            for host in self.hosts:
                if host.state is not None:
                    host.events.append(host.state.terminated)
        for rank in self.random.sample(self.ranks, len(self.ranks)) if reason == "killed" else self.ranks:
            if reason == "finished":
                rank.goodbye("finished")
            else:
                rank.kill()
            if reason == "killed":
                self.tick()

    def run_for(self, seconds: float, until: Callable[[], bool] = lambda: False) -> None:
        """Lets time pass, up to so many seconds."""
        until_s = self.now_s + seconds
        while self.now_s < until_s and not until():
            self.tick()

    def play(self) -> None:
        """The whole episode."""
        random = self.random
        for place in self.daemons:
            if random.random() < 0.6:
                place.start()
        self.run_for(3 * self.tick_s)
        self.begin()
        if self.ended_by:
            return
        for _ in range(random.randint(5, 50)):
            self.tick()
            self.something_may_happen(0.25)
        reason = random.choices(("finished", "killed", "terminated"), (6, 2, 1))[0]
        if reason == "finished":
            self.heal()
            self.calm = self._becomes_calm()
        self.end_training(reason)
        if reason != "finished":
            self.run_for(2 * self.tick_s)
            self.heal()
        self.run_for(8 * self.tick_s + 6, until=lambda: not any(host.is_there for host in self.hosts))
        for _ in range(3):
            if not self._has_end():  # no helper was left to write it: a daemon ends a job that is silent for long
                self.now_s += 2 * IDLE_S
                self.run_for(10 * self.tick_s + 4 * LEASE_S, until=self._has_end)

    def _has_end(self) -> bool:
        return any(Path(self.root).glob(f"*/{self.job_id}/end.json"))

    def _becomes_calm(self) -> bool:
        """Lets time pass until all is well for a while; returns whether that comes."""
        calm_since_s = self.now_s
        until_s = self.now_s + 8 * LEASE_S + 8 * self.lead_s
        while self.now_s < calm_since_s + 2 * self.lead_s:
            if self.now_s > until_s:
                return False
            self.tick()
            if not self._is_calm():
                calm_since_s = self.now_s
        return True

    def _is_calm(self) -> bool:
        """Whether one daemon leads, and all ranks follow the same schedule."""
        if self.coordination == "local":
            return all(host.is_there for host in self.hosts)
        leads = [place.daemon._leader.leadership for place in self.daemons if place.daemon is not None]
        numbers = {rank.log.get(self.step_number - 1, (-1, False))[0] for rank in self.ranks}
        return sum(one is not None for one in leads) == 1 and len(numbers) == 1


@contextmanager
def patched(world: World) -> Iterator[None]:
    """Replaces what is real by what is virtual: pauses, the daemon's threads, and the kind of the mount."""

    def files(root: Any, *, create: bool = False, **_: Any) -> Any:
        assert world.current is not None
        return world.current.files(root, create=create)

    with ExitStack() as stack:
        stack.enter_context(patch("pfo_fs.store.file_reader.time.sleep", lambda seconds: None))
        stack.enter_context(patch("pfo_fs.helper.operations.time", Waiting()))
        stack.enter_context(patch("pfo_fs.coordination.served_jobs.Workers", AtOnce))
        stack.enter_context(patch("pfo_fs.helper.operations.Files", files))
        for module in ("helper.operations", "coordination.daemon", "store.file_reader"):
            stack.enter_context(patch(f"pfo_fs.{module}.is_local", lambda path: world.is_local_mount))
        yield


def play(seed: int, memory: str | None = None) -> tuple[World, list[str]]:
    """Plays one episode; returns its world and what was violated."""
    from benchmarks.chaos.invariants import violations

    root = Path(tempfile.mkdtemp(prefix="pfo-chaos-", dir=memory))
    root.chmod(0o700)
    Learner.observed_twice = []
    try:
        world = World(seed, root)
        with patched(world):
            world.play()
            return world, violations(world)
    finally:
        shutil.rmtree(root)
