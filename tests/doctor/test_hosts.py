"""`pfo-fs doctor --peer`: hosts find each other beside whatever lies in the directory, and compare what they see."""

import os
import threading
from pathlib import Path

import pytest
from clock import Clock, replace_time
from running import HANGS_AFTER_S

from pfo_fs.doctor.directory.hosts import Hosts, HostsMissing, Report, Seen, judge
from pfo_fs.doctor.lines import Check, line
from pfo_fs.store import Files


def in_directory(root: Path, silent_s: float = HANGS_AFTER_S) -> Hosts:
    root.chmod(0o700)
    return Hosts(Files(root), beat=lambda: None, silent_s=silent_s)


def test_hosts_find_each_other_beside_leftovers_and_all_say_the_same(tmp_path: Path) -> None:
    crashed = in_directory(tmp_path)
    crashed.replace()
    (tmp_path / "doctor" / f"{crashed.me}-phase-1").touch()
    os.mkfifo(tmp_path / "doctor" / f"{'f' * 16}.json")
    (tmp_path / "doctor" / f"{'e' * 16}.json").write_text("junk")
    found: list[list[Check]] = []

    def run() -> None:
        hosts = in_directory(tmp_path)
        hosts.find(3, HANGS_AFTER_S)
        found.append(judge(hosts.reports()))
        hosts.leave()

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANGS_AFTER_S)
    assert found[1:] == found[:1] * 2
    lines = {check.name: check for check in found[0]}
    assert all(check.ok for check in lines.values()), "it is one file system with one clock"
    assert lines["change seen by other hosts"].found.count("new name") == 3
    left = {path.name[0] for path in (tmp_path / "doctor").iterdir()}
    assert left <= {"e", "f"}, "the files of hosts, and of the one that has crashed, are removed"


def test_a_host_that_is_alone_and_one_that_falls_silent_are_told_in_time(tmp_path: Path) -> None:
    hosts = in_directory(tmp_path, silent_s=0.2)
    with pytest.raises(HostsMissing, match="1 of 2 hosts"):
        hosts.find(2, 0.2)
    other = in_directory(tmp_path)
    other.mine.host = "node2"
    other.replace()
    hosts.look([other.me])
    hosts.mine.members = sorted([hosts.me, other.me])
    with pytest.raises(HostsMissing, match="node2"):
        hosts.reports()


def reports(*delays_s: dict[str, float]) -> dict[str, Report]:
    """What hosts have written whose changes others have seen with these delays."""
    return {name: Report(host=f"node-{name}", delays_s=given) for name, given in zip("ab", delays_s, strict=True)}


@pytest.mark.parametrize(
    ("delays_s", "expected"),
    [
        ({"replaced file": 0.2, "new name": 1.9}, "ok"),
        ({"replaced file": 2.1, "new name": 0.2}, "slow"),
        ({"replaced file": 0.2, "new name": 64.0}, "slow"),
        ({"replaced file": 66.0, "new name": 0.2}, "broken"),
        ({"replaced file": 0.2}, "broken"),  # what was never seen
        ({}, "broken"),
    ],
)
def test_the_longest_delay_counts(delays_s: dict[str, float], expected: str) -> None:
    name = "change seen by other hosts"
    told = judge(reports({"replaced file": 0.1, "new name": 0.1}, delays_s))
    check = next(check for check in told if check.name == name)
    assert check == line(name, expected, check.found)


def test_a_change_that_others_see_late_has_half_the_time_until_their_answer_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    replace_time(monkeypatch, "pfo_fs.doctor.directory.hosts", monotonic=clock, sleep=lambda _: None)
    hosts = in_directory(tmp_path)
    answer = Report(host="other")
    hosts.mine.seen["b"] = Seen()
    for counter, at_s in ((1, 1000.0), (2, 1001.0), (3, 1002.0)):
        clock.now = at_s
        hosts.replace()
        if counter == 1:  # the first answer tells nothing
            answer.seen = {hosts.me: Seen(counter=1)}
            hosts._saw("b", answer)
    clock.now = 1011.0
    hosts._saw("b", Report(host="other", counter=1, seen={hosts.me: Seen(counter=3)}))
    assert hosts.mine.delays_s == {"replaced file": 5.0}, "since the second, which was not seen before"


def test_hosts_with_the_same_name_are_told_apart() -> None:
    told = reports({}, {})
    told["a"].host = told["b"].host = "node"
    assert judge(told)[0].found == "node (a), node (b)"
