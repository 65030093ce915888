"""Who leads: a file in `leaders/` counts only if its record proves itself."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from pfo_fs.store import Files, SharedDirectory, bodies
from pfo_fs.store.file_systems import SystemCalls
from pfo_fs.store.records import Header, encode


@pytest.fixture
def shared(tmp_path: Path) -> SharedDirectory:
    return SharedDirectory.open(tmp_path / "pfo", create=True)


def leader(generation: int) -> bodies.LeaderBody:
    return bodies.LeaderBody(generation=generation, nonce="n", host="login1", pid=1)


def take_over(shared: SharedDirectory) -> int:
    generation = shared.leaders.poll()[1]
    assert shared.leaders.claim(leader(generation))
    return generation


def fresh(shared: SharedDirectory) -> SharedDirectory:
    """The same directory, as another daemon sees it."""
    return SharedDirectory(Files(shared.files.root))


def plant(shared: SharedDirectory, name: str, data: bytes = b"") -> None:
    (shared.files.root / "leaders" / name).write_bytes(data)


def record(generation: int) -> bytes:
    return encode(Header("leader", "", "w"), leader(generation))


@pytest.mark.parametrize("name", ["999999999.json", "2000.json", "7.json", "06.json", "-1.json", "1e9.json"])
@pytest.mark.parametrize("data", [b"", b"junk", record(3)])
def test_a_planted_name_neither_deposes_a_leader_nor_keeps_others_from_leading(
    shared: SharedDirectory, name: str, data: bytes
) -> None:
    for _ in range(6):
        take_over(shared)
    plant(shared, name, data)
    for _ in range(5):
        assert shared.leaders.poll()[0] == 6
        assert fresh(shared).leaders.poll()[0] == 6
    assert fresh(shared).leaders.poll()[0] < take_over(fresh(shared)) < 20


def test_what_is_planted_in_the_place_of_the_next_records_costs_a_bounded_number_of_reads(
    shared: SharedDirectory,
) -> None:
    take_over(shared)
    for number in range(3, 902):
        plant(shared, f"{number}.json", b"junk")
    (shared.files.root / "leaders" / "2.json").mkdir()
    assert shared.leaders.poll()[0] == 1
    other = fresh(shared)
    reads = []
    real = other.files.read
    other.files.read = lambda path, limit: (reads.append(path), real(path, limit))[1]  # type: ignore[method-assign]
    other.leaders.poll()
    assert len(reads) <= 32
    assert take_over(other) == 902
    (shared.files.root / "leaders" / "1.json").unlink()  # that of an older leader changes nothing
    assert shared.leaders.poll()[0] == fresh(shared).leaders.poll()[0] == 902


def test_two_daemons_that_judge_one_leader_dead_claim_the_same_generation(shared: SharedDirectory) -> None:
    take_over(shared)
    _, wanted = fresh(shared).leaders.poll()
    assert take_over(fresh(shared)) == wanted
    assert not fresh(shared).leaders.claim(leader(wanted).model_copy(update={"nonce": "other"}))


def test_a_leader_whose_record_was_refused_for_a_while_counts_when_it_can_be_read(
    shared: SharedDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = fresh(shared)
    take_over(daemon)
    take_over(fresh(shared))
    given = os.read

    def refused(*_: object) -> bytes:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(SystemCalls, "read", staticmethod(refused))
    assert {daemon.leaders.poll()[0] for _ in range(20)} == {1}
    monkeypatch.setattr(SystemCalls, "read", staticmethod(given))
    assert 2 in [daemon.leaders.poll()[0] for _ in range(20)]
