"""The next release takes over a running job: its planner plans otherwise, and nothing happens to the job."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from pfo_fs.autotune.beliefs import Beliefs
from pfo_fs.autotune.job_layout import ClockPlan
from pfo_fs.autotune.judgements import Trial
from pfo_fs.autotune.model import JobModel
from pfo_fs.device.simulated.physics import A100, node_physics
from pfo_fs.models import FrequencySchedule
from pfo_fs.planner import make_pipeline
from pfo_fs.settings import PFOSettings
from pfo_fs.simulator import Cluster, ModelTruth, Play
from pfo_fs.simulator.nodes import NodeSettings
from pfo_fs.store import bodies

SETTINGS = PFOSettings(scheduler="ParetoScheduler", profile_steps=4)
RESTARTS_AFTER = (16, 12, 12)
"""Iterations between restarts: while clocks are measured, and while plans are tried."""


class Books:
    """Clocks (MHz) of all ranks under which windows and plans were booked since the latest restart."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.windows: list[tuple[int, ...]] = []
        self.plans: list[tuple[int, ...]] = []
        take, add_trial = Beliefs.take, Beliefs.add_trial

        def noted_take(beliefs: Beliefs, results: Any, schedules: Sequence[FrequencySchedule], turns: Any = ()) -> Any:
            self.windows.append(clocks_of(schedules))
            return take(beliefs, results, schedules, turns)

        def noted_trial(beliefs: Beliefs, trial: Trial) -> None:
            self.plans.append(tuple(round(mhz) for mhz in trial.plan.of(0)))
            add_trial(beliefs, trial)

        monkeypatch.setattr(Beliefs, "take", noted_take)
        monkeypatch.setattr(Beliefs, "add_trial", noted_trial)


def clocks_of(schedules: Sequence[FrequencySchedule]) -> tuple[int, ...]:
    ordered = sorted(schedules, key=lambda schedule: schedule.rank)
    return tuple(mhz for schedule in ordered for _, mhz in schedule.frequencies)


def published(play: Play) -> list[tuple[int, ...]]:
    return [
        tuple(mhz for rank in sorted(by_rank) for _, mhz in by_rank[rank])
        for number in play.folder.schedule_numbers()
        for by_rank in play.schedules_of(number)
    ]


@pytest.fixture
def otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each restarted daemon is of another release: its plans take other times than those of the one before."""
    plan, restart = JobModel.plan, Play.restart_daemon
    releases = -1

    def other(model: JobModel, times: float = 1.0, *args: Any, **kwargs: Any) -> ClockPlan:
        return plan(model, times * (1 + 0.004 * (releases % 3)), *args, **kwargs)

    def newer(play: Play) -> None:
        nonlocal releases
        releases += 1
        restart(play)

    monkeypatch.setattr(JobModel, "plan", other)
    monkeypatch.setattr(Play, "restart_daemon", newer)


@pytest.mark.slow
@pytest.mark.usefixtures("otherwise")
def test_a_release_that_plans_otherwise_changes_no_clocks_and_books_results_under_what_ran(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster(
        make_pipeline("1f1b", 2, 4),
        ModelTruth(A100, 2, slowest_mhz=900),
        seed=3,
        nodes=NodeSettings(node_physics("kind")),
    )
    books = Books(monkeypatch)
    play = Play(cluster, tmp_path, SETTINGS)

    def upgrade() -> None:
        before = play.folder.read(bodies.CurrentBody)
        play.restart_daemon()
        books.windows.clear()
        books.plans.clear()
        play.coordinator.poll()
        assert before is not None
        assert play.folder.schedule_numbers()[-1] == before.number
        assert play.folder.read(bodies.CurrentBody).number == before.number

    for iterations in RESTARTS_AFTER:
        list(play.run(iterations))
        upgrade()
    assert set(books.windows) <= {(), *published(play)}
    assert books.plans
    assert set(books.plans) <= set(published(play))
    number = play.folder.schedule_numbers()[-1]
    assert {iteration.number for iteration in play.run(5)} == {number}
