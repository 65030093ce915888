"""`python -m benchmarks.gpu` without a GPU: what its measurements mean, its output, its errors."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.gpu import analysis, load_fits, run  # noqa: E402
from benchmarks.gpu.analysis import Anchor, Step, Tick, boundary_errors, to_host_ns  # noqa: E402

MS = 1_000_000
CLOCKS = [1200, 900, 1500]


def test_times_of_the_device_follow_the_line_through_anchors_that_lie_apart() -> None:
    assert to_host_ns(50 * MS, [Anchor(0, 5_000), Anchor(100 * MS, 5_000 + 101 * MS)]) == 5_000 + 50.5 * MS
    assert to_host_ns(2 * MS, [Anchor(0, 0), Anchor(1_000, 9_000)]) == 2 * MS


@given(st.lists(st.floats(0, 0.02), min_size=30, max_size=30))
def test_ticks_have_the_period_the_step_and_the_power_of_the_counter(late_s: list[float]) -> None:
    def ticks(late_s: list[float]) -> list[Tick]:
        return [Tick(i / 10 + late, 0.004, 1_000_000 + 40_000 * i) for i, late in enumerate(late_s)]

    exact = ticks([0.002] * 30)
    assert analysis.period_ms(exact) == pytest.approx(100)
    assert analysis.step_mj(exact) == 40_000
    assert analysis.tick_powers_w(exact) == pytest.approx([400] * 29)
    assert analysis.mean_power_w(ticks(late_s)) == pytest.approx(400, rel=0.02)
    with pytest.raises(ValueError, match="ticked 2 times; power needs 3"):
        analysis.mean_power_w(exact[:2])


def one_step(*begins_ms: float, lasting_ms: float = 10) -> Step:
    begins_ns = [ms * MS for ms in begins_ms]
    return Step(0, 100 * MS, begins_ns, [at_ns + lasting_ms * MS for at_ns in begins_ns])


@pytest.mark.parametrize(
    ("changes_ms", "missed", "wrong_share", "most_ms"),
    [
        (((10, 1200), (20, 900), (30, 1500)), 0, 0, 0),
        (((-5, 1200), (20, 900), (30, 1500), (99, 1200)), 0, 0, 0),  # there when the step begins
        (((12, 1200), (19, 900), (33, 1500)), 0, 6 / 30, 3),
        (((10, 1200), (30, 1500)), 1, 10 / 30, 0),  # one was overtaken
        (((1.0, 1200), (1.1, 900), (1.2, 1500)), 0, 20 / 30, 28.8),  # a launch that runs ahead
    ],
)
def test_clocks_count_by_their_distance_from_the_begins_of_instructions(
    changes_ms: tuple[tuple[float, int], ...], missed: int, wrong_share: float, most_ms: float
) -> None:
    found = boundary_errors([one_step(10, 20, 30)], CLOCKS, [(ms * MS, mhz) for ms, mhz in changes_ms])
    assert (found.boundaries, found.missed) == (3, missed)
    assert found.wrong_share == pytest.approx(wrong_share)
    assert found.error_ms["max"] == pytest.approx(most_ms)


@given(
    st.lists(st.floats(5, 20), min_size=3, max_size=3),
    st.lists(st.tuples(st.floats(1, 100 * MS), st.sampled_from([0, *CLOCKS])), max_size=12),
)
def test_the_wrong_share_is_a_share_whatever_was_set(apart_ms: list[float], changes: list[tuple[float, int]]) -> None:
    begins = [apart_ms[0], apart_ms[0] + apart_ms[1], sum(apart_ms)]
    found = boundary_errors([one_step(*begins, lasting_ms=4)], CLOCKS, sorted(changes))
    assert -1e-9 <= found.wrong_share <= 1 + 1e-9
    assert found.missed + len({mhz for _, mhz in changes if mhz}) == 3


@pytest.mark.parametrize(
    ("measure", "says"),
    [
        (lambda: boundary_errors([], [900, 900], []), "same clock"),
        (lambda: boundary_errors([one_step(10, 20)], CLOCKS, []), "2 begins for 3 instructions"),
        (lambda: analysis.alternating_clocks([900, 1200, 900], 3), "3 different clocks are needed; the GPU has 2"),
        (lambda: load_fits.unexplained(load_fits.draw_batches(4), [1.0] * 4, (0, 1)), "4 batches do not show"),
    ],
)
def test_what_cannot_be_measured_is_refused(measure: Callable[[], object], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        measure()


def test_the_output_is_json_and_the_table_shows_each_figure_once() -> None:
    text = 'a library says\n{"part": "graph", "what": "x"}\n{"part": "graph", "wha'
    assert run.results_in(text) == [{"part": "graph", "what": "x"}]
    assert run.plain({"a": float("nan"), "b": {"c": [float("inf"), 1.5]}}) == {"a": None, "b": {"c": [None, 1.5]}}
    result = {"part": "x", "what": "y", "device": "z", "tick_ms": 20.04321, "cost_us": {"median": 1.5}, "raw": [1] * 99}
    assert run.figures(result) == "tick_ms 20.04\ncost_us: median 1.5"


def test_a_part_that_fails_says_why_and_the_next_one_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    parts = {}

    def run_part(part: str, folder: Path, limit_s: float) -> list[dict[str, object]]:
        parts[part] = limit_s
        took: dict[str, object] = {"part": part, "what": "took", "seconds": 1.0}
        return [{**took, "error": "ended with 1: no GPU"} if part == "waves" else took]

    monkeypatch.setattr(run, "run_part", run_part)
    monkeypatch.setattr(
        sys, "argv", ["gpu", "--out", str(tmp_path / "out"), "--only", "waves", "graph", "--limit-s", "20"]
    )
    monkeypatch.setenv("PFO_FS_DRY_RUN", "")
    assert run.main() == 1
    assert list(parts) == ["waves", "graph"]
    assert max(parts.values()) <= 20  # and no part may take longer than all together
    lines = [json.loads(line) for line in (tmp_path / "out" / "results.jsonl").read_text().splitlines()]
    assert [line.get("error") for line in lines] == ["ended with 1: no GPU", None]
    assert "ended with 1: no GPU" in capsys.readouterr().out
