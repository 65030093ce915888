"""What README and docs promise in figures, tables and classes holds; tests/docs runs their blocks."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from jobs import one_f_one_b, rank_infos

from pfo_fs.models import JobInfo, ProfilingResult
from pfo_fs.settings import PFOSettings

ROOT = Path(__file__).parents[1]
ROW = re.compile(r"^\| .+ \| `pfo-fs (simulate .+)` \| ([\d.]+) % \| ([\d.]+) % \|$", re.MULTILINE)


def rows_of(page: str) -> list[tuple[str, str, str]]:
    return ROW.findall((ROOT / page).read_text())


@pytest.mark.slow
@pytest.mark.parametrize(("command", "saved", "slower"), sorted(rows_of("docs/measured.md")), ids=lambda text: text)
def test_the_command_of_a_row_prints_its_figures(command: str, saved: str, slower: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "pfo_fs", *shlex.split(command), "--json"], capture_output=True, text=True, check=True
    )
    found = json.loads(ended.stdout)["summary"]
    saved_percent = 100 * (1 - found["plan_energy_j"] / found["full_energy_j"])
    slower_percent = 100 * (found["plan_time_s"] / found["full_time_s"] - 1)
    assert float(saved) == pytest.approx(saved_percent, abs=0.3)
    assert float(slower) == pytest.approx(slower_percent, abs=0.1)


def test_the_table_shows_a_job_that_saves_nothing_beside_the_others() -> None:
    saved = [float(row[1]) for row in rows_of("docs/measured.md")]
    assert min(saved) == 0.0 < max(saved)


def test_the_policy_of_ones_own_goes_down_step_by_step() -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "planning.md").read_text(), re.DOTALL)
    names: dict[str, object] = {}
    exec(next(block for block in blocks if "class Descending" in block), names)
    job = JobInfo(pp_degree=4, dp_degree=1, tp_degree=1, world_size=4)
    scheduler = names["Descending"](job, rank_infos(4), PFOSettings())  # type: ignore[operator]
    results = [ProfilingResult(rank=rank, iter_time=[1.0], iter_energy=[1.0]) for rank in range(4)]
    for mhz in (1410, 1305, 1200):
        for schedule in scheduler.next_schedule():
            assert schedule.frequencies == one_f_one_b(schedule.rank, 4, 12, mhz)
        scheduler.observe(results)
    assert scheduler.done
