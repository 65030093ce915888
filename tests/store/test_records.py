"""Records prove themselves: nothing but the exact bytes that were written is believed."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pfo_fs.errors import RecordError
from pfo_fs.store.bodies import EndBody, PlanBody
from pfo_fs.store.records import Header, decode, encode

names = st.text(st.characters(codec="utf-8").filter(str.isprintable), min_size=1, max_size=20)
plans = st.builds(
    PlanBody,
    number=st.integers(0, 10_000),
    start_step=st.integers(0, 10_000),
    ranks=st.lists(st.integers(0, 10_000), min_size=1, max_size=5),
    frequencies=st.lists(st.tuples(names, st.integers(0, 3000)), max_size=20),
)


@given(plans, st.text(max_size=50), names, st.booleans())
def test_what_is_written_is_read(plan: PlanBody, attempt: str, writer: str, readable: bool) -> None:
    header = Header("schedule", attempt, writer)
    data = encode(header, plan, readable=readable)
    assert decode(data, "schedule", PlanBody, attempt=attempt) == (header, plan)


@given(plans, st.data())
def test_no_changed_byte_goes_unnoticed(plan: PlanBody, data: st.DataObject) -> None:
    record = bytearray(encode(Header("schedule", "a", "w"), plan))
    body = record.index(b',"body":') + 8
    at = data.draw(st.integers(body, len(record) - 3))
    record[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(RecordError):
        decode(bytes(record), "schedule", PlanBody)


@given(plans, st.data())
def test_torn_and_padded_records_are_refused(plan: PlanBody, data: st.DataObject) -> None:
    record = encode(Header("schedule", "a", "w"), plan)
    cut = data.draw(st.integers(0, len(record) - 1))
    with pytest.raises(RecordError):
        decode(record[:cut], "schedule", PlanBody)
    with pytest.raises(RecordError):
        decode(record[:cut] + b"\0" * (len(record) - cut), "schedule", PlanBody)
    with pytest.raises(RecordError):
        decode(record + b"\0\0\0", "schedule", PlanBody)


@given(st.binary(max_size=400))
def test_any_bytes_at_all_give_a_clear_error(data: bytes) -> None:
    with pytest.raises(RecordError):
        decode(data, "end", EndBody)


def test_another_attempt_kind_or_release_is_refused() -> None:
    record = encode(Header("end", "first", "w"), EndBody(reason="idle"))
    with pytest.raises(RecordError, match="another training attempt"):
        decode(record, "end", EndBody, attempt="second")
    with pytest.raises(RecordError, match="kind"):
        decode(record, "job", EndBody)
    with pytest.raises(RecordError, match=r"pfo-fs/9.*this release reads"):
        decode(record.replace(b"pfo-fs/5", b"pfo-fs/9"), "end", EndBody)


def test_a_record_is_plain_json_for_other_tools() -> None:
    record = json.loads(encode(Header("end", "a", 'w","body":{}'), EndBody(reason="idle", message="x")))
    assert record["body"] == {"reason": "idle", "message": "x"}
    assert record["schema"] == "pfo-fs/5"
