"""Whether the shared directory answers."""

from __future__ import annotations

import errno
import logging

import pytest
from clock import Clock

from pfo_fs.errors import StoreError
from pfo_fs.helper.watches import DirectoryHealth


@pytest.fixture
def outage(clock: Clock, caplog: pytest.LogCaptureFixture) -> DirectoryHealth:
    caplog.set_level(logging.WARNING, "pfo_fs")
    return DirectoryHealth(clock)


FULL = StoreError(errno.ENOSPC, "no space left")


def test_an_outage_is_said_when_it_begins_and_when_it_ends(
    outage: DirectoryHealth, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(20):
        outage.ended("read", FULL)
        clock.now += 1
    assert outage.error == "no space left"
    clock.now += 10
    outage.ended("read", None)
    outage.ended("read", None)
    assert outage.error == ""
    assert [record.getMessage().split(":")[0] for record in caplog.records] == [
        "the shared directory does not answer; training goes on with its present schedule",
        "the shared directory answers again",
    ]


def test_a_full_disk_that_takes_some_writes_is_one_outage(
    outage: DirectoryHealth, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(50):
        outage.ended("write", FULL)
        clock.now += 1
        outage.ended("write", None)
    assert len(caplog.records) == 1


def test_what_cannot_be_written_does_not_hide_that_nothing_is_read(outage: DirectoryHealth, clock: Clock) -> None:
    outage.ended("read", FULL)
    clock.now += 700
    outage.ended("write", None)
    assert outage.is_lost
    outage.ended("write", FULL)
    outage.ended("read", None)
    assert not outage.is_lost
    assert outage.error == "no space left"


def test_a_directory_that_answers_now_and_then_answers(outage: DirectoryHealth, clock: Clock) -> None:
    for _ in range(700):
        outage.ended("read", FULL)
        clock.now += 1
        outage.ended("read", None)
    assert not outage.is_lost
