"""Packets and messages: what is sent arrives, what is not a message is refused; descriptors that are no longer ours."""

import os
import secrets
import socket
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pfo_fs.ipc import messages as m
from pfo_fs.ipc import transport
from pfo_fs.ipc.system_calls import OwnFile, open_doorbell


@given(
    st.integers(0, 9),
    st.lists(st.tuples(st.text(min_size=1, max_size=9), st.integers(0, 2000)), max_size=9),
    st.dictionaries(st.integers(0, 99), st.integers(0, 1), max_size=4),
)
def test_a_schedule_arrives_as_sent(number: int, frequencies: list[tuple[str, int]], ranks: dict[int, int]) -> None:
    sent = m.NewSchedule(number=number, plans=[m.RankPlan(frequencies)], ranks=ranks)
    assert transport.decode(transport.encode(sent), m.ToTraining) == sent


@given(st.binary(max_size=200))
def test_a_packet_that_is_not_a_message_is_refused(packet: bytes) -> None:
    with pytest.raises(ValueError, match="not a message"):
        transport.decode(packet, m.ToHelper)


@pytest.mark.parametrize(
    "message",
    [
        {},
        {"type": 3},
        {"type": "NoSuchMessage"},
        {"type": "JoinJob"},
        {"type": "MeasurementReport", "number": "x", "first_step": 0, "result": {}},
        {"type": "Joined"},
        {"type": "ReadProfile"},
        {"type": "SaveProfile", "path": "/p", "content": "text", "replace": 1},
    ],
)
def test_a_message_of_another_shape_is_refused(message: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="not a message"):
        transport.decode(transport.encode(message), m.ToHelper)


def test_a_message_that_swells_beyond_bounds_is_refused() -> None:
    bomb = transport.encode({"x": "0" * (transport.MAX_MESSAGE_BYTES + 10)})
    assert len(bomb) < 200_000
    with pytest.raises(ValueError, match="too large"):
        transport.decode(bomb, dict)


def test_an_address_has_one_listener() -> None:
    address = f"pfo-fs-test-{secrets.token_hex(8)}"
    with transport.listen(address), pytest.raises(OSError, match="in use"):
        transport.listen(address)


@pytest.mark.parametrize("flags", [0, socket.MSG_DONTWAIT])
def test_what_a_peer_sent_is_read_though_it_closed_without_reading_everything(flags: int) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.send(b"never read")
    theirs.send(b"goodbye")
    theirs.close()
    with ours:
        assert [transport.receive(ours, flags) for _ in range(3)] == [b"goodbye", b"", b""]


@given(st.text(st.characters(categories=["Cs", "L"]), max_size=20))
def test_a_text_that_is_not_utf_8_arrives_with_question_marks(text: str) -> None:
    sent = m.OrderSeen(instructions=[(text, None)])
    arrived = transport.decode(transport.encode(sent), m.ToHelper)
    assert arrived.instructions == [(text.encode("utf-8", "replace").decode(), None)]


def test_every_message_belongs_to_a_direction() -> None:
    classes = {kind for kind in vars(m).values() if isinstance(kind, type) and issubclass(kind, m.Message)} - {
        m.Message
    }
    assert classes == {*get_args(m.ToHelper), *get_args(m.ToTraining)}


@pytest.mark.parametrize("is_ours", [True, False])
def test_our_socket_is_closed_once_and_a_file_in_its_place_stays_open(tmp_path: Path, is_ours: bool) -> None:
    (tmp_path / "diary").write_text("secret")
    ours, theirs = socket.socketpair()
    fd, own = ours.fileno(), OwnFile(ours.fileno())
    with (tmp_path / "diary").open() as file:
        if is_ours:
            own.close_socket(ours)
            assert theirs.recv(1) == b""
        os.dup2(file.fileno(), fd)
    assert not own.is_open()
    own.close()
    for _ in range(2):
        own.close_socket(ours)
    assert os.read(fd, 6) == b"secret"
    os.close(fd)
    theirs.close()


def test_a_doorbell_is_closed_once_although_that_of_a_later_optimizer_has_its_number() -> None:
    own = OwnFile(open_doorbell()[0])
    own.close()
    later, _ = open_doorbell()
    own.close()
    os.close(later)
