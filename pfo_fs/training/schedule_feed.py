"""The sources of schedules. The optimizer polls its feed once per step and passes the updates to the switcher."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias

from pfo_fs.ipc.messages import ClocksHeld, NewSchedule, RankPlan, ToTraining
from pfo_fs.training.schedule_switcher import PendingSchedule, Resume, Suspend, Withdraw

ScheduleUpdate: TypeAlias = "PendingSchedule[RankPlan] | Suspend | Resume | Withdraw"
"""An update from a feed to the switcher."""

# Reasons for default clocks.
HELD = "held"
LEASE_OVER = "lease over"
SCHEDULE_MISSED = "schedule missed"
BROADCAST_LOST = "broadcast lost"

_HELD_TEXTS = {
    "off": "pfo-fs is switched off here; default clocks until `pfo-fs on`",
    "removed": "the shared directory, or this job's folder in it, was removed; default clocks",
    "lost": "the shared directory has not answered for a long time; default clocks until it does",
}
LEASE_OVER_TEXT = (
    "the scheduler has not reported in time, and its schedule was made for a straggler that may be gone; default "
    "clocks until it reports again"
)


def held(message: ClocksHeld) -> Suspend | Resume:
    """Returns the update for the switcher: default clocks, or the schedule again."""
    return Suspend(HELD, _HELD_TEXTS[message.why]) if message.why else Resume(HELD)


class ScheduleFeed(Protocol):
    """The source of this rank's schedules."""

    def step_begin(
        self, step: int, iter_time_s: float | None, messages: Sequence[ToTraining]
    ) -> Sequence[ScheduleUpdate]:
        """Returns what is new at this step, in order. Never raises, and waits for a limited time at most.

        Args:
            step: The step that begins.
            iter_time_s: How long the last step took; None before there was one.
            messages: What the helper of this host has sent since the last step.
        """

    def close(self) -> None:
        """Ends the feed, at the end of training."""


class NoFeed:
    """No schedules: coordination is off."""

    def step_begin(
        self, step: int, iter_time_s: float | None, messages: Sequence[ToTraining]
    ) -> Sequence[ScheduleUpdate]:
        """Returns nothing."""
        return ()

    def close(self) -> None:
        """Does nothing."""


def pending_for(rank: int, schedule: NewSchedule, start_step: int) -> PendingSchedule[RankPlan]:
    """Returns the part of a schedule that concerns `rank`; a rank without a part keeps default clocks."""
    mine = schedule.plan_of(rank) or RankPlan([])
    return PendingSchedule(schedule.number, start_step, schedule.steps, mine)
