"""The solver prints nothing: `--json` output must hold nothing else."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import highspy

from pfo_fs.planner.relaxation import silent_highs

plain = highspy.Highs.enableCallbacks


def with_banner(self):
    if self.getOptionValue("output_flag")[1]:
        print("a banner, as HiGHS 1.16 prints one")
    plain(self)


highspy.Highs.enableCallbacks = with_banner
highs = silent_highs()
highs.passModel(highspy.HighsLp())
highs.run()
"""


def test_the_solver_prints_nothing_although_its_constructor_would() -> None:
    ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert ended.stdout == ""
