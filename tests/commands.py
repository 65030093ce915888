"""The commands, as people and scripts call them: in this process, which is quick, or in one of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO

import pytest

from pfo_fs.cli import main


def pfo_fs(*arguments: object, columns: int = 200, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs a command in this process; of the settings of these tests, only the folders of simulated GPUs count."""
    out, err, code = StringIO(), StringIO(), 0
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr(sys, "argv", ["pfo-fs", *map(str, arguments)])
        patch.delenv("PFO_FS_SCHEDULER", raising=False)
        for name, value in {"COLUMNS": str(columns), **environment}.items():
            patch.setenv(name, value)
        try:
            main()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
    return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())


def pfo_fs_process(*arguments: object, columns: int = 200) -> subprocess.CompletedProcess[str]:
    """Runs a command in a process of its own, without any setting."""
    command = [sys.executable, "-m", "pfo_fs", *map(str, arguments)]
    environment = {"PATH": os.environ["PATH"], "COLUMNS": str(columns)}
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
