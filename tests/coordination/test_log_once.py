"""A cause is logged once."""

from __future__ import annotations

import logging

import pytest
from clock import Clock
from coordinator_jobs import coordinate, poll

from pfo_fs.coordination.log_once import GONE_AFTER_S, LogOnce
from pfo_fs.store import JobFolder


@pytest.fixture
def once(clock: Clock) -> LogOnce:
    return LogOnce(logging.getLogger("once"), clock)


@pytest.mark.parametrize(
    ("pause_s", "times"), [(GONE_AFTER_S / 2, 1), (1 + GONE_AFTER_S, 100)], ids=["they stay", "they were gone for long"]
)
def test_causes_in_turn_are_logged_once_each_until_they_were_gone_for_long(
    once: LogOnce, clock: Clock, caplog: pytest.LogCaptureFixture, pause_s: float, times: int
) -> None:
    for _ in range(100):
        for text in ("full disk", "no answer"):
            once.log(logging.WARNING, text)
        clock.now += pause_s
    assert caplog.text.count("full disk") == caplog.text.count("no answer") == times


def test_of_more_and_more_causes_the_first_are_forgotten(once: LogOnce, caplog: pytest.LogCaptureFixture) -> None:
    for number in (*range(5000), 4999, 0):
        once.log(logging.WARNING, f"job {number} is damaged")
    assert len(caplog.records) == 5001
    assert caplog.records[-1].getMessage() == "job 0 is damaged"


def test_a_damaged_job_is_logged_once_however_long_it_stays(
    folder: JobFolder, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    (folder.files.root / folder.path / "ranks" / "1.json").write_text("damaged")
    coordinator = coordinate(folder, clock)
    poll(coordinator, clock, 1800)
    assert caplog.text.count("ranks/1.json") == 1
