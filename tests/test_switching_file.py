"""The file of measured costs of clock changes: read as data, bounded, with errors that name what is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pfo_fs.errors import PlanError
from pfo_fs.planner import costs_of
from pfo_fs.switching_file import MAX_SWITCHING_BYTES, read_switching

MEASURED: dict[str, Any] = {
    "call_s": {"median": 0.005, "p99": 0.012},
    "latency_s": {"1410": 0.008, "1005": 0.01},
    "gpus": 8,
    "max_calls_per_s": 170,
}


def written(tmp_path: Path, **changes: object) -> Path:
    path = tmp_path / "switching.json"
    path.write_text(json.dumps(MEASURED | changes))
    return path


def test_a_change_of_a_rank_takes_a_call_for_each_of_its_gpus(tmp_path: Path) -> None:
    costs = costs_of(read_switching(written(tmp_path)), gpus_per_rank=8)
    assert costs.driver_time_s == pytest.approx(0.04)
    assert costs.latency_s == 0.01
    assert costs.calls == 8
    assert costs.max_calls_per_s == 170
    assert costs.timing_error_s == pytest.approx(0.001)


def test_a_rank_with_more_gpus_than_a_node_has_them_on_several_nodes(tmp_path: Path) -> None:
    assert costs_of(read_switching(written(tmp_path)), gpus_per_rank=16).calls == 8


def test_only_the_time_of_a_call_is_needed(tmp_path: Path) -> None:
    path = tmp_path / "short.json"
    path.write_text('{"call_s": {"median": 0.004}, "new key of a later release": 1}')
    assert costs_of(read_switching(path), 2).driver_time_s == 0.008


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "."),
        (b"\xff\xfe", "."),
        (b"[1, 2]", "."),
        (b'{"call_s": NaN}', "."),
        (b"[" * 100_000, "."),
        (b" " * (MAX_SWITCHING_BYTES + 1), "is larger than"),
        ({"call_s": {"median": -1}}, "call_s.median"),
        ({"call_s": {}}, "call_s.median"),
        ({"latency_s": {"1410": 1e9}}, "latency_s.1410"),
        ({"latency_s": {"fast": 0.1}}, "latency_s.fast"),
        ({"gpus": 0}, "gpus"),
        ({"max_calls_per_s": 0}, "max_calls_per_s"),
        ({"latency_s": {str(mhz): 0.01 for mhz in range(5000)}}, "latency_s"),
    ],
)
def test_what_is_no_such_file_is_refused_and_what_is_wrong_is_named(
    tmp_path: Path, content: bytes | dict[str, Any], said: str
) -> None:
    path = written(tmp_path, **content if isinstance(content, dict) else {})
    if isinstance(content, bytes):
        path.write_bytes(content)
    with pytest.raises(PlanError, match=rf"switching.json: {said}"):
        read_switching(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="missing: cannot be read: No such file"):
        read_switching(tmp_path / "missing")
