"""Where the notes lie of what is to be put back, whoever else is on the host."""

import os
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest

from pfo_fs.device.clocks import undo_note
from pfo_fs.device.clocks.undo import Undo
from pfo_fs.device.clocks.undo_note import Leftover, limit_note

TAKEN: dict[str, Callable[[Path], object]] = {
    "a file": lambda path: path.touch(),
    "a folder that others can write": lambda path: (path.mkdir(), path.chmod(0o777)),
    "a link": lambda path: path.symlink_to(path.parent.parent),
    "a link to nowhere": lambda path: path.symlink_to("/nowhere"),
}


@pytest.fixture
def name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The place of this user's notes, in a memory that all users share."""
    monkeypatch.delenv("PFO_FS_RUN_DIR")
    (tmp_path / "memory").mkdir()
    monkeypatch.setattr(undo_note, "MEMORY", str(tmp_path / "memory"))
    return tmp_path / "memory" / f"pfo-fs-{os.geteuid()}"


@pytest.mark.parametrize("taken", TAKEN)
def test_a_note_is_read_and_removed_although_another_user_took_the_name_of_its_folder(name: Path, taken: str) -> None:
    TAKEN[taken](name)
    limit_note("GPU-1").write(400, 200)
    left = limit_note("GPU-1").leftover()
    assert (left.before, left.value) == (400, 200)
    assert not list(name.iterdir() if name.is_dir() and not name.is_symlink() else [])
    limit_note("GPU-1").remove()
    assert limit_note("GPU-1").leftover() is None


def test_a_note_is_found_although_the_name_is_taken_or_free_again_later(name: Path) -> None:
    name.touch()
    limit_note("GPU-1").write(400, 200)
    name.unlink()
    limit_note("GPU-2").write(300, 150)
    assert [limit_note(uuid).leftover().before for uuid in ("GPU-1", "GPU-2")] == [400, 300]  # type: ignore[union-attr]


def test_what_others_have_written_under_a_similar_name_does_not_count(name: Path) -> None:
    name.with_name(f"{name.name}1").mkdir(mode=0o700)  # the notes of user 10, where this one is user 1
    limit_note("GPU-1").write(400, 200)
    (written,) = name.iterdir()
    written.write_text('{"before": 400, "value": 200, "pid": Infinity}')
    assert limit_note("GPU-1").leftover() is None


def test_a_clock_on_a_gpu_that_another_process_takes_after_a_failed_reset_is_no_longer_in_force() -> None:
    note = Mock(leftover=lambda: Leftover(0, 600, 1, in_use=True))
    undo, in_force = Undo("the clock", note, Mock(side_effect=OSError), Mock()), Mock()
    undo.in_force = in_force
    undo.owe(900)
    for _ in range(2):
        undo.go_on(undo.due_ns)
    in_force.assert_called_once_with(0)
