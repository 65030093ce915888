"""Every message is typed: it arrives as it was sent, and one of another shape is refused."""

from __future__ import annotations

from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pfo_fs.ipc import messages as m
from pfo_fs.ipc import transport

TO_HELPER = st.one_of(
    st.builds(m.ReadProfile, path=st.text()),
    st.builds(m.SaveProfile, path=st.text(), content=st.binary(), replace=st.booleans()),
    st.builds(m.WatchSwitch),
)
TO_TRAINING = st.one_of(
    st.builds(m.ProfileRead, profile=st.sampled_from(["none", "read", "unknown"]), content=st.binary()),
    st.builds(m.ProfileSaved),
)


@given(TO_HELPER)
def test_what_a_power_limit_optimizer_says_arrives_as_it_was_sent(message: m.Message) -> None:
    assert transport.decode(transport.encode(message), m.ToHelper) == message


@given(TO_TRAINING)
def test_what_its_helper_says_arrives_as_it_was_sent(message: m.Message) -> None:
    assert transport.decode(transport.encode(message), m.ToTraining) == message


@pytest.mark.parametrize(
    "message",
    [
        {"type": "ReadProfile"},
        {"type": "SaveProfile", "path": "/p", "content": "text", "replace": 1},
        {"type": "ProfileSaved", "message": "only helpers say this"},
    ],
)
def test_a_power_limit_message_of_another_shape_is_refused(message: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="not a message"):
        transport.decode(transport.encode(message), m.ToHelper)


def test_every_message_belongs_to_a_direction() -> None:
    classes = {kind for kind in vars(m).values() if isinstance(kind, type) and issubclass(kind, m.Message)} - {
        m.Message
    }
    assert classes == {*get_args(m.ToHelper), *get_args(m.ToTraining)}


def test_messages_cannot_be_changed() -> None:
    message = m.PaceLeaseRenewed(lease_s=1)
    with pytest.raises(AttributeError):
        message.lease_s = 2  # type: ignore[misc]
    assert msgspec.structs.asdict(message) == {"lease_s": 1}
