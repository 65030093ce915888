"""SIGTERM leaves a trace, and does to the process what it did before."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import os, signal
from pfo_fs.ipc.process_end import got_sigterm_within, trace_sigterm

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
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    own = "the program's own handler"
    assert done.stdout.splitlines() == [own, "False", own, "True"]


DUMPS = """
import faulthandler, os, signal, sys
from pfo_fs.ipc.process_end import trace_sigterm

faulthandler.register(signal.SIGTERM, file=sys.stderr, chain=True)
trace_sigterm()
os.kill(os.getpid(), signal.SIGTERM)
"""


def test_a_dump_that_the_program_wants_at_sigterm_is_still_written() -> None:
    done = subprocess.run([sys.executable, "-c", DUMPS], capture_output=True, text=True, check=False)
    assert done.returncode == -15
    assert "most recent call first" in done.stderr
