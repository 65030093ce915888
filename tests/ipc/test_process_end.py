"""The end of processes: objects are told of it."""

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import multiprocessing, os, sys, time

class Thing:
    def __init__(self):
        from pfo_fs.ipc.process_end import at_process_end, in_forked_children
        self.parent = os.getpid()
        at_process_end(self.end)
        in_forked_children(self.forget)
    def end(self, error):
        print("ended with", repr(error), flush=True)
    def forget(self):
        print("forgotten", flush=True)

def work(how):
    global thing
    thing = Thing()
    if how == "raises":
        raise ValueError("wrong")
    if how == "exits":
        sys.exit(3)

if __name__ == "__main__":
    method, how = sys.argv[1:]
    child = multiprocessing.get_context(method).Process(target=work, args=(how,))
    child.start()
    child.join()
"""


@pytest.mark.parametrize(
    ("method", "how", "told"),
    [
        ("fork", "returns", "ended with None"),
        ("fork", "raises", f"ended with {'ValueError' if sys.version_info < (3, 13) else 'SystemExit'}"),
        ("spawn", "exits", "ended with SystemExit(3)"),
    ],
)
def test_a_process_of_multiprocessing_says_how_it_ends(tmp_path: Path, method: str, how: str, told: str) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    command = [sys.executable, str(program), method, how]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[0].startswith(told)


def test_an_object_that_is_gone_is_told_nothing_and_the_end_is_silent(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    code = "from program import Thing; import os; Thing(); kept = Thing(); os.fork() or os._exit(0); os.wait()"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["forgotten", "ended with None"]
    assert done.stderr == ""
