"""`pfo-fs doctor --peer`: hosts find each other beside whatever lies in the directory, and compare what they see."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
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


def reports(ahead_s: float = 0.0, late_s: float = 0.01, old_s: float = 0.0) -> dict[str, Report]:
    """Two hosts, of which b's clock is ahead; changes are seen after `late_s`, replaced files after `old_s` at most."""
    made = {"a": [1.0, 2.0, 3.0], "b": [ahead_s + s for s in (1.5, 2.5, 3.5)]}
    behind = {"a": -ahead_s, "b": ahead_s}  # seen by it, less the time that the other one writes
    return {
        one: Report(
            host=f"node-{one}",
            made_s=made[one],
            seen={
                other: Seen(
                    least_s=late_s + behind[one],
                    most_s=old_s + behind[one],
                    new_s=[s + behind[one] + late_s for s in made[other]],
                )
            },
        )
        for one, other in (("a", "b"), ("b", "a"))
    }


def delay(told: dict[str, Report]) -> str:
    """The outcome of the line about changes."""
    name = "change seen by other hosts"
    check = next(check for check in judge(told) if check.name == name)
    return next(outcome for outcome in ("ok", "slow", "broken") if check == line(name, outcome, check.found))


@given(ahead_s=st.floats(-1e6, 1e6), late_s=st.floats(0.001, 60.0), old_s=st.floats(0.0, 60.0))
def test_delays_do_not_depend_on_how_far_apart_the_clocks_are(ahead_s: float, late_s: float, old_s: float) -> None:
    slow = "slow" if max(late_s, old_s) > 2 + 1e-6 else "ok"
    assert delay(reports(ahead_s, late_s, old_s)) == slow or max(late_s, old_s) == pytest.approx(2, abs=1e-6)


@pytest.mark.parametrize("seen", [Seen(least_s=0.1, new_s=[1.0, 2.0]), Seen(new_s=[1.0, 2.0, 3.0]), None])
def test_what_was_never_seen_is_told(seen: Seen | None) -> None:
    told = reports()
    told["b"].seen = {} if seen is None else {"a": seen}
    assert delay(told) == "broken"


def test_hosts_with_the_same_name_are_told_apart() -> None:
    told = reports()
    told["a"].host = told["b"].host = "node"
    assert judge(told)[0].found == "node (a), node (b)"
