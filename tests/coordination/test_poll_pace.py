"""How often hosts poll: rarely while nothing happens or where they are many; schedules start when all have them."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from clock import Clock
from hypothesis import given, settings
from hypothesis import strategies as st
from jobs import current_of, make_job, rank_infos, register, write_step

from pfo_fs.coordination import Coordinator
from pfo_fs.coordination.progress import CALM_AFTER_S, PollPace
from pfo_fs.helper.job import Around
from pfo_fs.helper.operations import ScheduleFound
from pfo_fs.helper.watches import ScheduleWatch
from pfo_fs.settings import PFOSettings
from pfo_fs.store import JobFolder, bodies


def coordinate(folder: JobFolder, clock: Clock, **settings: object) -> Coordinator:
    given = PFOSettings(scheduler="Manual", **settings)  # type: ignore[arg-type]
    return Coordinator(folder, given, kind="daemon", generation=1, lead_s=5.0, remote=True, monotonic=clock)


def train(folder: JobFolder, coordinator: Coordinator, clock: Clock, seconds: int) -> bodies.CurrentBody:
    """A step a second, and what `current.json` says after the last one."""
    for _ in range(seconds):
        write_step(folder, int(clock.now), 1.0)
        coordinator.poll()
        clock.now += 1.0
    current = current_of(folder)
    return current


def test_hosts_of_a_calm_job_poll_rarely_and_a_schedule_after_that_gives_them_the_time(
    tmp_path: Path, clock: Clock
) -> None:
    folder = make_job(tmp_path, 1)
    register(folder, rank_infos(1))
    coordinator = coordinate(folder, clock)
    assert train(folder, coordinator, clock, 10).poll_s == 0
    assert train(folder, coordinator, clock, int(CALM_AFTER_S)).poll_s == 10
    assert coordinator.poll() == 10
    (folder.location / "schedule.yaml").write_text("all: 1200\n")
    folder.write(bodies.OrderBody(rank=0, instructions=[("forward", None), ("backward", None)]))
    current = train(folder, coordinator, clock, 3)
    assert current.number == 1
    assert current.start_step >= clock.now - 3 + 15
    assert current.poll_s == 0


def test_a_daemon_that_takes_a_calm_job_over_gives_its_hosts_the_time_too(tmp_path: Path, clock: Clock) -> None:
    folder = make_job(tmp_path, 1)
    register(folder, rank_infos(1))
    assert train(folder, coordinate(folder, clock), clock, 10 + int(CALM_AFTER_S)).poll_s == 10
    (folder.location / "schedule.yaml").write_text("all: 1200\n")
    folder.write(bodies.OrderBody(rank=0, instructions=[("forward", None), ("backward", None)]))
    began = clock.now
    current = train(folder, coordinate(folder, clock), clock, 4)
    assert current.number == 1
    assert current.start_step >= began + 15


def test_a_user_who_sets_the_interval_gets_it(tmp_path: Path, clock: Clock) -> None:
    folder = make_job(tmp_path, 1)
    register(folder, rank_infos(1))
    assert train(folder, coordinate(folder, clock, poll_interval=1), clock, 2 * int(CALM_AFTER_S)).poll_s == 0
    watch = ScheduleWatch(0.5, Around())
    watch.learn(ScheduleFound(current(poll_s=10.0)))
    assert watch.interval_s(False) == 0.5


def current(poll_s: float) -> bodies.CurrentBody:
    return bodies.CurrentBody(generation=1, number=0, state="running", poll_s=poll_s)


@settings(max_examples=50)
@given(st.integers(1, 1_000_000), st.booleans(), st.lists(st.tuples(st.floats(0, 100), st.booleans()), max_size=20))
def test_every_host_polls_within_the_lead_of_a_schedule(
    world_size: int, remote: bool, course: list[tuple[float, bool]]
) -> None:
    """A host that polled just before the schedule was written polls again after the pace that it knew then."""
    pace, now = PollPace(1.0, remote=remote, adapts=True, now=0.0), 0.0
    known: list[tuple[float, float]] = [(0.0, 0.0)]  # (since when, poll_s)
    for seconds, changes in course:
        now += seconds
        if changes:
            pace.changed(now)
        pace.update(now, world_size)
        known.append((now, pace.poll_s))
        current(pace.poll_s)  # it fits into the record
        # Hosts that polled before the last change of the pace still follow the one before it.
        still = [then for (_, then), (since, _) in pairwise(known) if now - since <= 1.2 * then]
        assert pace.lead_s(now) >= 1.2 * max([pace.poll_s, *still])


def test_a_job_on_this_hosts_disk_is_polled_as_before() -> None:
    pace = PollPace(1.0, remote=False, adapts=True, now=0.0)
    pace.update(1e6, 8)
    assert (pace.poll_s, pace.lead_s(1e6)) == (0.0, 1.0)


@pytest.mark.parametrize("poll_s", [0.25, 2.0, 60.0])
def test_a_schedule_starts_when_the_host_that_polls_most_rarely_has_it(
    tmp_path: Path, clock: Clock, poll_s: float
) -> None:
    """The daemon may run on the file server, where the directory lies on a local disk, or hosts have a setting."""
    folder = make_job(tmp_path, 1, 2)
    first, second = rank_infos(1, 2)
    folder.register_ranks([bodies.RankBody(rank_info=first, nonce="a", poll_s=0.25)])
    folder.register_ranks([bodies.RankBody(rank_info=second, nonce="b", poll_s=poll_s)])
    given = PFOSettings(scheduler="Manual")
    coordinator = Coordinator(folder, given, kind="daemon", generation=1, lead_s=1.0, monotonic=clock)
    train(folder, coordinator, clock, 10)
    folder.write(bodies.OrderBody(rank=0, instructions=[("forward", None), ("backward", None)]))
    (folder.location / "schedule.yaml").write_text("all: 1200\n")
    published_at = clock.now
    current = train(folder, coordinator, clock, 5)
    assert current.number == 1
    assert current.start_step >= published_at + max(1.0, 1.2 * poll_s)


def test_a_helper_polls_as_rarely_as_it_is_asked_to() -> None:
    watch = ScheduleWatch(None, Around(lambda: 100.0))
    watch.learn(ScheduleFound(current(poll_s=10.0)))
    watch.polled()
    assert 108.0 <= watch.due_s() <= 112.0
