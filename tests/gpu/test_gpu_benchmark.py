"""`python -m benchmarks.gpu` without a GPU: what its measurements mean, its output, its errors."""

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.gpu import run  # noqa: E402
from benchmarks.gpu.analysis import Step, boundary_errors  # noqa: E402

MS = 1_000_000
CLOCKS = [1200, 900, 1500]


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
