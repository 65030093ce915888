"""What a helper must know survives the helper."""

from unittest.mock import Mock

import msgspec
import pytest
from clock import Clock
from fake_helper import FakeClient

from pfo_fs.guard import WarnOnce
from pfo_fs.helper.link import HelperLink
from pfo_fs.ipc import messages as m

JOIN = m.JoinJob(job_id="job", attempt="a", coordination="local", rank_body={})
RANKS = m.AllRanks(rank_infos=[])
GOODBYE = m.Goodbye(reason="finished")
ORDER = m.OrderSeen(instructions=[("forward", None)])


@pytest.fixture
def client() -> FakeClient:
    return FakeClient()


@pytest.fixture
def link(client: FakeClient, clock: Clock) -> HelperLink:
    link = HelperLink(WarnOnce(), clock)
    link.client = client
    return link


def test_a_new_helper_is_told_what_the_dead_one_knew_and_keeps_its_name(link: HelperLink, client: FakeClient) -> None:
    for message in (JOIN, RANKS, m.ScheduleApplied(number=0, step=0, late=False), ORDER):
        link.send_kept(message)
    link.send(m.ProblemSeen(message="not for a new one"))
    link.send_kept(m.ScheduleApplied(number=1, step=9, late=False))
    client.inbox.append(m.Joined(helper_name=3))
    link.poll()
    client.die()
    link.poll()
    join = msgspec.structs.replace(JOIN, helper_name=3)
    assert client.told_on_revival == [[join, RANKS, m.ScheduleApplied(number=1, step=9, late=False), ORDER]]


def test_a_helper_is_replaced_no_more_often_than_every_two_seconds_and_one_warning_says_so(
    link: HelperLink, client: FakeClient, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    client.may_revive = False
    client.die()
    tries = []
    client.revive = lambda joining: tries.append(clock.now) is not None
    for _ in range(100):
        link.poll()
        clock.now += 0.1
    assert len(tries) == 5
    assert caplog.text.count("has died; another one is started") == 1


def test_training_that_ends_when_its_helper_has_died_tells_a_new_one_how(link: HelperLink, client: FakeClient) -> None:
    link.send_kept(JOIN)
    client.die()
    link.poll()
    client.die()
    link.leave(GOODBYE)
    assert client.told_on_revival == [[JOIN], [JOIN]]
    assert client.sent[-1] == GOODBYE
    assert client.closed


def test_a_helper_that_cannot_be_started_does_not_raise_into_training(link: HelperLink, client: FakeClient) -> None:
    client.revive = Mock(side_effect=BlockingIOError("too many processes"))
    client.die()
    assert link.poll() == []


def test_messages_without_end_do_not_hold_up_a_step(link: HelperLink, client: FakeClient, clock: Clock) -> None:
    def poll() -> m.PaceLeaseRenewed:
        clock.now += 0.005
        return m.PaceLeaseRenewed(lease_s=1.0)

    client.poll = poll
    assert 1 <= len(link.poll()) < 10


def test_log_lines_and_refusals_are_logged_and_are_not_for_the_feed(
    link: HelperLink, client: FakeClient, caplog: pytest.LogCaptureFixture
) -> None:
    client.inbox.extend(
        [m.LogLine(level=30, message="from the helper"), m.Refused(message="no"), m.NewSchedule(number=1)]
    )
    assert link.poll() == [m.NewSchedule(number=1)]
    assert "from the helper" in caplog.text
    assert "no" in caplog.text


def test_the_first_schedule_is_put_back_for_the_first_step(link: HelperLink, client: FakeClient) -> None:
    client.inbox.extend([m.PaceLeaseRenewed(lease_s=1.0), m.NewSchedule(number=1)])
    schedule = link.wait_for_schedule(1.0)
    link.put_back(schedule)
    assert link.poll() == [m.NewSchedule(number=1), m.PaceLeaseRenewed(lease_s=1.0)]


def test_a_link_without_a_helper_does_nothing() -> None:
    link = HelperLink(WarnOnce())
    link.send_kept(ORDER)
    assert link.poll() == []
    assert link.wait_for_schedule(1.0) is None
    link.close()


@pytest.mark.parametrize("is_new", [False, True])
def test_what_the_helper_had_no_room_for_is_sent_again(link: HelperLink, client: FakeClient, is_new: bool) -> None:
    client.reads, client.lost = False, is_new
    link.send_kept(ORDER)
    link.poll()
    assert client.sent == []
    client.reads = True
    link.poll()
    link.poll()
    assert client.sent == [ORDER]


def test_how_a_helper_ended_is_in_the_warning_and_by_the_next_one_in_the_status(
    link: HelperLink, client: FakeClient, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    client.ended = " (exit status 1; its last words: ImportError: libzstd)"
    client.may_revive = False
    client.die()
    link.poll()
    assert "ImportError: libzstd" in caplog.text
    client.may_revive = True
    clock.now += 10
    link.poll()
    problems = [message.message for message in client.sent if isinstance(message, m.ProblemSeen)]
    assert ["ImportError: libzstd" in text for text in problems] == [True]
