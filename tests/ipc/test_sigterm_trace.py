"""SIGTERM leaves a trace, and does to the process what it did before."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import os, signal
from pfo_fs.ipc.sigterm_trace import got_sigterm_within, trace_sigterm

signal.signal(signal.SIGTERM, lambda *_: print("the program's own handler", flush=True))
trace = trace_sigterm()
child = os.fork()
if child == 0:
    os.kill(os.getpid(), signal.SIGTERM)
    os._exit(0)
os.waitpid(child, 0)
print(got_sigterm_within(trace, 60), flush=True)
os.kill(os.getpid(), signal.SIGTERM)
print(got_sigterm_within(trace, 60), flush=True)
"""


def test_the_programs_own_handler_runs_and_a_forked_child_leaves_no_trace_in_its_parent() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=True)
    own = "the program's own handler"
    assert done.stdout.splitlines() == [own, "False", own, "True"]
