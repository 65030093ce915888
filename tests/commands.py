"""The commands, as people and scripts call them, in this process, which is quick."""

import json
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from typing import Any

import pytest

from pfo_fs.cli import main


class Done(subprocess.CompletedProcess[str]):
    @property
    def said(self) -> str:
        """What people see, on one line, without the frames of tables."""
        return " ".join((self.stdout + self.stderr).replace("│", " ").split())

    @property
    def answer(self) -> dict[str, Any]:
        """What it tells programs, by `--json`."""
        answer: dict[str, Any] = json.loads(self.stdout)
        return answer


def pfo_fs(*arguments: object, code: int | None = None, columns: int = 200, **environment: str) -> Done:
    """Runs a command in this process; of the settings of these tests, only the folders of simulated GPUs count.

    Fails if the command ends with another exit code than `code`, unless that is None.
    """
    out, err, ended = StringIO(), StringIO(), 0
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr(sys, "argv", ["pfo-fs", *map(str, arguments)])
        patch.delenv("PFO_FS_SCHEDULER", raising=False)
        for name, value in {"COLUMNS": str(columns), **environment}.items():
            patch.setenv(name, value)
        try:
            main()
        except SystemExit as end:
            ended = end.code if isinstance(end.code, int) else int(end.code is not None)
    done = Done(arguments, ended, out.getvalue(), err.getvalue())
    assert code in (None, ended), done
    return done
