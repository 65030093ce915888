"""`pfo-fs doctor DIR` on real GlusterFS: a good mount, and mounts with all kinds of trouble."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from gluster_volume import Gluster, gluster_volume
from running import wait_for

pytestmark = pytest.mark.gluster


def start(directory: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "pfo_fs", "doctor", str(directory), "--json", *arguments]
    variables = {**os.environ, "PFO_FS_GPU": "none"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=variables)


def finish(process: subprocess.Popen[str]) -> tuple[int, dict[str, dict[str, Any]]]:
    """Returns the exit status, and the lines by name; of several with one name, the last."""
    output, _ = process.communicate()
    return process.returncode, {line["name"]: line for line in json.loads(output)["checks"]}


def doctor(directory: Path, *arguments: str) -> tuple[int, dict[str, dict[str, Any]]]:
    return finish(start(directory, *arguments))


def both(volume: Gluster, *arguments: str) -> list[tuple[int, dict[str, dict[str, Any]]]]:
    started = [start(mount / "pfo", "--peer", "2", *arguments) for mount in volume.mounts]
    return [finish(process) for process in started]


def make_directory(volume: Gluster) -> None:
    (volume.mounts[0] / "pfo").mkdir(mode=0o700)


@pytest.mark.slow
def test_two_mounts_of_a_good_file_system_pass_every_check_and_leave_nothing_behind(gluster: Gluster) -> None:
    make_directory(gluster)
    for status, lines in both(gluster):
        assert status == 0, lines
        between = ("other hosts", "change seen by other hosts")
        assert all(lines[name]["ok"] for name in (*between, "write", "exclusive create"))
        assert "fuse.glusterfs" in lines["file system"]["found"]
    assert list((gluster.mounts[0] / "pfo").iterdir()) == []


def test_a_full_file_system_is_told(tmp_path: Path) -> None:
    brick = tmp_path / "g" / "brick"
    brick.mkdir(parents=True)
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(brick)], check=False).returncode:
        pytest.skip("cannot mount a tmpfs")
    try:
        with gluster_volume(tmp_path / "g") as volume:
            make_directory(volume)
            (brick / "fill").write_bytes(b"x" * (os.statvfs(brick).f_bavail * 4096 - 8192))
            status, lines = doctor(volume.mounts[0] / "pfo")
            assert status == 1
            assert lines["write"]["ok"] is False
            assert "full" in lines["write"]["meaning"]
            assert list((volume.mounts[0] / "pfo").iterdir()) == []
    finally:
        subprocess.run(["umount", "-l", str(brick)], check=False)


@pytest.mark.slow
def test_a_hung_mount_ends_the_command_with_a_line_about_it(gluster: Gluster) -> None:
    make_directory(gluster)
    gluster.server.send_signal(signal.SIGSTOP)
    status, lines = doctor(gluster.mounts[0] / "pfo", "--answer-within", "2")
    assert status == 1
    assert "no answer within 2 s (file system: fuse.glusterfs)" in lines["answers"]["found"]
    assert "hangs" in lines["answers"]["meaning"]


def test_a_mount_without_a_server_is_told(gluster: Gluster) -> None:
    make_directory(gluster)
    gluster.server.kill()
    gluster.server.wait()
    status, lines = doctor(gluster.mounts[0] / "pfo", "--answer-within", "20")
    assert status == 1
    assert lines["answers"]["ok"] is False


@pytest.mark.slow
def test_a_server_that_stops_between_the_hosts_ends_both_commands(gluster: Gluster) -> None:
    make_directory(gluster)
    started = [start(mount / "pfo", "--peer", "3", "--answer-within", "3", "--wait", "60") for mount in gluster.mounts]
    wait_for(lambda: len(list((gluster.mounts[0] / "pfo").glob("doctor/*.json"))) == 2)
    gluster.server.send_signal(signal.SIGSTOP)
    for process in started:
        status, lines = finish(process)
        assert status == 1
        assert "waiting for 2 other host(s)" in lines["answers"]["found"]
