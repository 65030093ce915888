"""Faults of the shared directory, in helper processes that have this folder on their PYTHONPATH.

The file that `PFO_TEST_FAULT` names holds the name of an error, which all calls, or those that write, then fail with;
or `slow`, for 0.2 s a call. No file, no fault. `PFO_TEST_CLOCK_S` sets the host's wall clock ahead.
"""

import errno
import os
import sys
import time
from pathlib import Path
from typing import Any

WRITING = ("write", "fsync", "link", "mkdir", "replace")
OF_WRITES = ("ENOSPC", "EDQUOT")


def with_faults(name: str, call: Any) -> Any:
    def faulty(*args: Any, **kwargs: Any) -> Any:
        try:
            fault = Path(os.environ["PFO_TEST_FAULT"]).read_text()
        except FileNotFoundError:
            fault = ""
        if fault == "slow":
            time.sleep(0.2)
        elif fault and name != "close" and (fault not in OF_WRITES or name in WRITING):
            raise OSError(getattr(errno, fault), os.strerror(getattr(errno, fault)))
        return call(*args, **kwargs)

    return faulty


if "pfo_fs.helper.process" in sys.orig_argv:
    if ahead := float(os.environ.get("PFO_TEST_CLOCK_S", "0")):
        wall_clock = time.time
        time.time = lambda: wall_clock() + ahead
    from pfo_fs.store.file_systems import SystemCalls

    for each in [name for name in vars(SystemCalls) if not name.startswith("_")]:
        setattr(SystemCalls, each, staticmethod(with_faults(each, getattr(SystemCalls, each))))
