"""Files that a person asked for."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from running import HANGS_AFTER_S

from pfo_fs.reports.atomic_output import output_file

WRITES = """
from pfo_fs.reports.atomic_output import output_file
with output_file("/dev/stdout") as file:
    file.write("new\\n")
"""


def write(path: Path, text: str = "new") -> None:
    with output_file(path) as file:
        file.write(text)


def test_a_file_is_replaced_only_by_a_whole_one(tmp_path: Path) -> None:
    path = tmp_path / "f"
    write(path, "old")
    half: list[object] = ["half", 1]
    with pytest.raises(TypeError), output_file(path) as file:
        file.writelines(half)
    assert path.read_text() == "old"
    write(path)
    assert path.read_text() == "new"
    assert os.listdir(tmp_path) == ["f"]


def test_what_is_no_plain_file_is_written_into(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    seen: list[str] = []
    reader = threading.Thread(target=lambda: seen.append(pipe.read_text()))
    reader.start()
    write(pipe)
    reader.join(HANGS_AFTER_S)
    assert seen == ["new"]
    assert pipe.is_fifo()
    write(Path("/dev/null"))
    assert Path("/dev/null").is_char_device()


def test_a_link_stays_and_what_it_leads_to_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "target")
    write(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").read_text() == "new"


def test_standard_output_that_goes_to_a_file_is_added_to(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with log.open("w") as file:
        file.write("before\n")
        file.flush()
        subprocess.run([sys.executable, "-c", WRITES], stdout=file, check=True)
        file.write("after\n")
    assert log.read_text() == "before\nnew\nafter\n"


def test_a_file_keeps_its_mode(tmp_path: Path) -> None:
    (tmp_path / "f").touch(0o600)
    write(tmp_path / "f")
    assert (tmp_path / "f").stat().st_mode & 0o777 == 0o600
