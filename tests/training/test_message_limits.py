"""What a helper sends is checked where it arrives: nothing out of range reaches the training thread."""

import socket
from typing import Any

import pytest
from running import HANGS_AFTER_S

from pfo_fs.helper.client import HelperClient
from pfo_fs.ipc import transport
from pfo_fs.ipc.messages import NewSchedule

GOOD: dict[str, Any] = {"type": "NewSchedule", "number": 1, "start_step": 5, "until": 0, "after": -1, "turns": []}
GOOD |= {"plans": [{"frequencies": [["forward", 900]]}], "ranks": {0: 0}}
WRONG = [
    *({field: value} for field in ("number", "start_step", "until", "after") for value in (2**63, 2**64 - 1, -2, 1.5)),
    *({"turns": turns} for turns in ([4], [-1], [1.5], [1] * 1025)),
    *(
        {"plans": [{"frequencies": [each]}]}
        for each in (["forward", 2**63], ["forward", -1], ["", 900], ["x" * 65, 900])
    ),
    {"plans": [{"frequencies": [["forward", 900]] * 65_536}]},
    {"plans": [{"frequencies": [["forward", 900]], "stages": [0, 1]}]},
]


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Any:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    monkeypatch.setattr(transport, "connect", lambda address: ours)
    made = HelperClient("address", "/dir", "token", 0, {})
    made.helper_side = theirs  # type: ignore[attr-defined]
    yield made
    made.close()
    theirs.close()


def test_messages_beyond_the_limits_are_dropped_with_one_warning(client: Any, caplog: pytest.LogCaptureFixture) -> None:
    for wrong in WRONG:
        client.helper_side.send(transport.encode({**GOOD, **wrong}))
        assert client.poll() is None, wrong
        assert not client.lost
    for lease_s in (float("nan"), float("inf"), -1.0):
        client.helper_side.send(transport.encode({"type": "PaceLeaseRenewed", "lease_s": lease_s}))
        assert client.poll() is None
    assert caplog.text.count("a message of the helper process is dropped") == 1


def test_a_message_beyond_the_limits_is_not_raised_where_the_first_schedule_is_awaited(client: Any) -> None:
    client.helper_side.send(transport.encode({**GOOD, "number": 2**63}))
    client.helper_side.send(transport.encode(GOOD))
    assert client.wait_for(NewSchedule, HANGS_AFTER_S).plan_of(0).frequencies == [("forward", 900)]
