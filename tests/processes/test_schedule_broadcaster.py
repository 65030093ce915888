"""The exchange of schedules between real processes, by gloo."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from running import environment

pytest.importorskip("torch")
pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
RANKS = 3


def play(**given: Any) -> list[dict[str, Any]]:
    """Runs the program on all ranks; returns what each of them has reported, rank by rank."""
    with tempfile.TemporaryDirectory() as results:
        done = subprocess.run(
            [
                *(sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}"),
                *(str(HERE / "broadcast_program.py"), json.dumps({**given, "results": results})),
            ],
            env=environment(),
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        files = sorted(Path(results).glob("*.jsonl"))
        return [json.loads(line) for file in files for line in file.read_text(encoding="utf-8").splitlines()]


def test_packets_arrive_on_all_ranks_at_the_same_step_and_the_newest_offer_wins() -> None:
    lines = play(steps=40, offers={"1": "x", "2": "y", "20": "z" * 100_000})
    assert [line["first"] for line in lines if "first" in line] == ["first"] * RANKS
    arrived = [(line["step"], line["packet"][:3]) for line in lines if "packet" in line]
    assert len(arrived) % RANKS == 0
    assert {packet for _, packet in arrived} >= {"y", "zzz"}
    assert len(set(arrived)) == len(arrived) // RANKS, "each packet at one step"
    assert not [line for line in lines if "lost" in line]


@pytest.mark.parametrize("rank", [0, 2])
def test_an_exchange_that_fails_on_one_rank_is_noticed_by_all_others_within_a_few_steps(rank: int) -> None:
    lines = play(steps=40, offers={"1": "x"}, fails=[rank, 20])
    lost = {line["rank"]: line["step"] for line in lines if "lost" in line}
    assert sorted(lost) == list(range(RANKS))
    assert lost[rank] == 20
    assert max(lost.values()) <= 30
    assert len([line for line in lines if "done" in line]) == RANKS, "and training ends as always"
