"""The files for operators: the systemd unit, the Spack recipe, the package's own description."""

import ast
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
UNIT = ROOT / "deploy" / "systemd" / "pfo-fs-daemon.service"
MOST_EXPOSURE = 1.5
"""systemd's own score of the unit: 0 is closed, 10 is open; below 2 it says "OK"."""


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    path = tmp_path / UNIT.name
    path.write_text(UNIT.read_text().replace("/opt/pfo-fs/bin/pfo-fs-daemon", "/bin/true"))
    return path


def analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["systemd-analyze", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_systemd_understands_each_line_of_the_unit(unit: Path) -> None:
    done = analyze("verify", "--man=no", str(unit))
    assert done.returncode == 0
    assert unit.name not in done.stdout + done.stderr  # it warns of lines that it does not know


def test_the_unit_is_closed_by_systemds_own_score(unit: Path) -> None:
    done = analyze("security", "--offline=true", "--no-pager", str(unit))
    score = re.search(r"exposure level for .*: ([\d.]+)", done.stdout)
    assert score, done.stdout + done.stderr
    assert float(score[1]) <= MOST_EXPOSURE


REACHES_BEYOND = (
    r"RemoveIPC|DynamicUser|(Runtime|State|Cache|Logs|Configuration)Directory\w*|Exec(Condition|StartPre|StartPost|Stop)|"
    r"(On)?(Failure|Success)(Action)?|Conflicts|Upholds|BindsTo|PartOf|Requires|Delegate|KillMode|MountFlags|PrivateMounts"
)
"""Settings of systemd that remove shared memory or folders of others, or that start, end or show something else."""


def test_no_line_of_the_unit_or_of_the_documented_change_to_it_reaches_beyond_the_daemon() -> None:
    change = (ROOT / "docs" / "operating.md").read_text().partition("```ini\n")[2].partition("```")[0]
    names = re.findall(r"^(\w+)=", UNIT.read_text() + change, re.MULTILINE)
    assert {"User", "ExecStart", "RequiresMountsFor"} <= set(names)
    assert not [name for name in names if re.fullmatch(REACHES_BEYOND, name)]


def test_the_spack_recipe_names_the_packages_dependencies() -> None:
    project = (ROOT / "pyproject.toml").read_text().partition("\ndependencies = [")[2].partition("\n]")[0]
    needed = {f"py-{name}@{least}:" for name, least in re.findall(r'"([a-z0-9-]+)>=([\d.]+)"', project)}
    recipe = ast.parse((ROOT / "deploy" / "spack" / "package.py").read_text())
    named = {node.value for node in ast.walk(recipe) if isinstance(node, ast.Constant)}
    assert len(needed) > 10
    assert needed <= named
