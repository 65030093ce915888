"""Some fast episodes of `python -m benchmarks.chaos`; what is broken, and what must hold: `docs/failures.md`."""

import random
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.chaos.world import play  # noqa: E402
from pfo_fs.helper.write_queue import WriteQueue  # noqa: E402


def violations(seeds: Iterable[int], folder: Path) -> Iterator[str]:
    return (f"--fast 1 --seed {seed}: {text}" for seed in seeds for text in play(seed, str(folder))[1])


FOUND_VIOLATIONS_ONCE = [1000373, 2000058, 2000199, 2000398, 3000446, 3000588]
MANY = pytest.mark.slow


@pytest.mark.parametrize("seeds", [FOUND_VIOLATIONS_ONCE, range(10), pytest.param(range(10, 30), marks=MANY)], ids=str)
def test_all_invariants_hold_in_episodes_of_known_seeds(tmp_path: Path, seeds: Iterable[int]) -> None:
    assert list(violations(seeds, tmp_path)) == []


@pytest.mark.parametrize("count", [6, pytest.param(30, marks=MANY)])
def test_all_invariants_hold_in_episodes_of_fresh_seeds(tmp_path: Path, count: int) -> None:
    first = random.SystemRandom().randrange(10**9)
    assert list(violations(range(first, first + count), tmp_path)) == []


def test_a_seed_replays_its_episode(tmp_path: Path) -> None:
    first, second = (play(2000398, str(tmp_path))[0] for _ in range(2))
    assert first.faults == second.faults
    assert [rank.log for rank in first.ranks] == [rank.log for rank in second.ranks]


def test_the_episodes_find_a_helper_that_tries_no_write_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They can fail, then."""
    done = WriteQueue.done
    monkeypatch.setattr(WriteQueue, "done", lambda *args, again=True: done(*args, again=False))
    assert any("is lost" in text for text in violations(range(20), tmp_path))
