"""Every message is typed: it arrives as it was sent, and one of another shape is refused."""

from __future__ import annotations

import math
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pfo_fs.ipc import messages as m
from pfo_fs.ipc import transport

LEVELS = st.integers(1, 999_999)
POSITIVE = st.floats(1e-300, 1e15)
MEASURED = st.builds(m.LimitMeasured, level=LEVELS, energy_j=POSITIVE, time_s=POSITIVE)
CHOSEN = st.builds(m.LimitChosen, selector=st.text(max_size=50), level=LEVELS)
TO_HELPER = st.one_of(
    st.builds(
        m.OpenPowerLimitFiles, profile_path=st.none() | st.text(), shared_dir=st.none() | st.text(), key=st.text()
    ),
    st.builds(m.ReadProfile, offset=st.integers(0, 2**40)),
    st.builds(m.SaveProfile, path=st.text(), content=st.binary(), replace=st.booleans()),
    st.builds(m.LimitBegun, level=LEVELS),
    MEASURED,
    CHOSEN,
)
TO_TRAINING = st.one_of(
    st.builds(
        m.PowerLimitFilesOpened,
        profile=st.sampled_from(["none", "read", "unknown"]),
        profile_bytes=st.integers(0, 2**20),
        shares=st.booleans(),
    ),
    st.builds(m.ProfilePart, offset=st.integers(0, 2**40), content=st.binary()),
    st.builds(
        m.SharedUpdates,
        measurements=st.lists(MEASURED, max_size=5),
        choices=st.lists(CHOSEN, max_size=5),
        begun=st.lists(LEVELS, max_size=5),
    ),
    st.builds(m.FilesProblem, message=st.text()),
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
        {"type": "OpenPowerLimitFiles"},
        {"type": "ReadProfile", "offset": -1},
        {"type": "SaveProfile", "path": "/p", "content": "text", "replace": 1},
        {"type": "LimitBegun", "level": 0},
        {"type": "LimitBegun", "level": 1_000_000},
        {"type": "LimitMeasured", "level": 1, "energy_j": math.nan, "time_s": 1.0},
        {"type": "LimitMeasured", "level": 1, "energy_j": math.inf, "time_s": 1.0},
        {"type": "LimitMeasured", "level": 1, "energy_j": 1.0, "time_s": -1.0},
        {"type": "LimitChosen", "selector": 3, "level": 1},
        {"type": "FilesProblem", "message": "only helpers say this"},
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
    message = m.LimitBegun(level=1)
    with pytest.raises(AttributeError):
        message.level = 2  # type: ignore[misc]
    assert msgspec.structs.asdict(message) == {"level": 1}
