"""What the lines of `pfo-fs doctor DIR` say, from what was found."""

import ast
import errno
import logging
import os
from collections import Counter
from io import StringIO
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rich.console import Console
from running import HANGS_AFTER_S

from pfo_fs.cli.doctor import _check_table
from pfo_fs.cli.terminal import PlainFormatter
from pfo_fs.doctor.directory.names import check_write, judge_locks, judge_owner, judge_reads
from pfo_fs.doctor.directory.place import check_rights, judge_mount
from pfo_fs.doctor.directory.process import check_directory, check_directory_in_time
from pfo_fs.doctor.lines import Check, lines
from pfo_fs.errors import plain_text
from pfo_fs.store import mount_of


@pytest.mark.parametrize(
    ("kind", "options", "outcomes"),
    [
        ("nfs4", "rw,hard,vers=4.2,acregmax=60,local_lock=none", ["ok"]),
        ("nfs", "rw,nolock,soft,nocto,acdirmax=600", ["local-locks", "soft", "stale", "long-caches"]),
        ("nfs", "rw,local_lock=flock", ["local-locks"]),
        ("nfs4", "ro,hard", ["read-only"]),
        ("lustre", "rw,localflock", ["local-locks"]),
        ("lustre", "rw,flock,lazystatfs", ["ok"]),
        ("cifs", "rw,cache=loose,nobrl", ["local-locks", "stale"]),
        ("ext4", "rw,nolock", ["ok"]),
    ],
)
def test_options_that_do_harm_are_told_one_by_one(kind: str, options: str, outcomes: list[str]) -> None:
    table = f"31 22 0:41 / /shared rw,relatime - {kind} server:/export {options}\n"
    told = {check.meaning: check.ok for check in judge_mount(mount_of("/shared/pfo", table))[1:]}
    known = lines()["mount options"]
    assert told == {known[name]["meaning"]: known[name]["ok"] for name in outcomes}


@pytest.mark.parametrize(
    ("mode", "folder_mode", "ok", "says"),
    [
        (0o700, 0o700, [True, True], ""),
        (0o2770, 0o2770, [True, True], ""),
        (0o707, 0o700, [False, True], "chmod o-w"),
        (0o770, 0o770, [None, True], "g+s"),
        (0o2770, 0o2750, [True, False], "chmod 2770 the folder"),
        (0o700, 0o707, [True, False], "chmod o-w the folder"),
    ],
)
def test_rights_of_the_directory_and_of_the_folders_in_it(
    tmp_path: Path, mode: int, folder_mode: int, ok: list[bool | None], says: str
) -> None:
    root = tmp_path / "pfo"
    (root / "jobs").mkdir(parents=True)
    (root / "jobs").chmod(folder_mode)
    root.chmod(mode)
    lines = check_rights(root)
    assert [line.ok for line in lines] == ok
    assert says in " ".join(line.hint for line in lines)


def test_a_folder_above_that_others_may_write_to_is_told(tmp_path: Path) -> None:
    root = tmp_path / "open" / "pfo"
    root.mkdir(parents=True, mode=0o700)
    root.parent.chmod(0o777)
    assert "open" in check_rights(root)[1].found
    root.parent.chmod(0o1777)
    assert len(check_rights(root)) == 2


def test_a_folder_that_an_acl_closes_to_this_user_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The modes say that the group may write; a root that is shared by an ACL without a default ACL looks like this."""
    (tmp_path / "jobs").mkdir()
    for path in (tmp_path, tmp_path / "jobs"):
        path.chmod(0o2770)
    monkeypatch.setattr(os, "access", lambda path, *_, **__: path != tmp_path / "jobs")
    closed = check_rights(tmp_path)[-1]
    assert closed.ok is False
    assert "setfacl" in closed.hint


@pytest.mark.parametrize("refuses", [True, False])
def test_a_file_system_on_which_modes_cannot_be_changed_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refuses: bool
) -> None:
    def chmod(*_: object, **__: object) -> None:
        if refuses:
            raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(Path, "chmod", chmod)
    told = {check.name: check for check in check_write(tmp_path)}
    assert told["write"].ok
    assert told["chmod"].ok is None
    assert "umask 007" in told["chmod"].hint


@pytest.mark.parametrize(
    ("content", "ok", "says"),
    [
        (None, True, "coordination: auto"),
        ("coordination: daemon-only\n", True, "coordination: daemon-only"),
        ("\ncordination: daemon-only\n", False, "site.yaml is not valid: line 2: unknown key 'cordination'"),
    ],
)
def test_the_sites_rules_are_told_or_the_line_of_their_mistake(
    tmp_path: Path, content: str | None, ok: bool, says: str
) -> None:
    tmp_path.chmod(0o700)
    if content is not None:
        (tmp_path / "site.yaml").write_text(content)
    checks = check_directory(tmp_path, 1, 0.0, lambda *_: None)
    found = next(check for check in checks if check.name == "rules of the site")
    assert found.ok is ok
    assert says in found.found


def test_results_follow_from_what_was_found() -> None:
    found: list[tuple[Check, bool | None]] = [
        (judge_reads(Counter(reads=5)), True),
        (judge_reads(Counter(reads=5, ESTALE=1)), None),
        (judge_reads(Counter(reads=5, missing=4, failed=1)), False),
        (judge_owner(5, 5, shared=False), True),
        (judge_owner(65534, 0, shared=False), False),
        (judge_owner(65534, 0, shared=True), None),
        (judge_locks({"flock": ("granted", "held")}), True),
        (judge_locks({"flock": ("granted", "granted")}), None),
        (judge_locks({"flock": ("ENOLCK", "ENOLCK")}), None),
    ]
    assert [check.ok for check, _ in found] == [ok for _, ok in found]


def test_what_does_not_work_always_says_what_to_do() -> None:
    outcomes = [(name, what, one) for name, line in lines().items() for what, one in line.items()]
    assert all(outcome["meaning"] for _, _, outcome in outcomes)
    assert [(line, what) for line, what, one in outcomes if one["ok"] is False and not one.get("todo")] == []


def test_every_line_that_the_code_prints_is_in_the_file_with_its_results() -> None:
    printed = set()
    for path in (Path(__file__).parents[2] / "pfo_fs" / "doctor").rglob("*.py"):
        for call in ast.walk(ast.parse(path.read_text())):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "line":
                name, outcome = call.args[:2]
                if not isinstance(name, ast.Constant):
                    continue
                printed.add(name.value)
                if isinstance(outcome, ast.Constant):
                    assert outcome.value in lines()[name.value]
    assert printed == {*lines()} - {"each way to set clocks"}, "each way is printed by its own name"


def test_a_directory_that_is_missing_is_not_made(tmp_path: Path) -> None:
    checks = check_directory_in_time(
        tmp_path / "pfo", peers=1, wait_s=1, answer_within_s=HANGS_AFTER_S, show=lambda _: None
    )
    assert [(check.name, check.ok) for check in checks] == [("answers", False)]
    assert list(tmp_path.iterdir()) == []


@given(text=st.text(st.characters(exclude_categories=()), max_size=60))
@example("\x1b[2J\x1b]0;title\x07\n2026-01-01 ERROR forged\r\u202etxt [red]x[/] <b>")
def test_text_of_other_hosts_is_text_in_the_table_and_in_logs(text: str) -> None:
    console = Console(file=StringIO(), width=1000, color_system="standard", force_terminal=False)
    console.print(_check_table([Check("other hosts", True, f"|{text}|")]))
    assert f"|{plain_text(text)}|" in console.file.getvalue()  # type: ignore[attr-defined]
    record = logging.LogRecord("pfo_fs", logging.INFO, "f", 1, "job %s", (text,), None)
    assert PlainFormatter("%(message)s").format(record) == f"job {plain_text(text)}"
    assert plain_text(text).isprintable()
