"""docs/switching.md: it describes each mode and each simulated node, and its example works."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pfo_fs.device.simulated.node_physics import PRESETS
from pfo_fs.training.stream_marks import WAYS
from pfo_fs.training.switching import MODES

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "switching.md").read_text()


@pytest.mark.parametrize("name", [*MODES, *PRESETS])
def test_each_mode_and_each_simulated_node_has_a_row(name: str) -> None:
    assert re.search(rf"^\| `{name}`(, the default)? \|", PAGE, re.MULTILINE)


@pytest.mark.parametrize("way", WAYS)
def test_each_way_to_mark_is_named(way: str) -> None:
    assert f"`{way}`" in PAGE


@pytest.mark.parametrize("name", re.findall(r"\]\(([^):#]+)\)|`((?:pfo_fs|benchmarks)/[a-z_/]+\.py)`", PAGE))
def test_each_file_that_is_named_exists(name: tuple[str, str]) -> None:
    page, file = name
    assert (ROOT / "docs" / page if page else ROOT / file).exists()


def test_the_example_launches_ahead_of_a_simulated_gpu(tmp_path: Path) -> None:
    example = next(text for text in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if "stream.launch" in text)
    script = tmp_path / "my_script.py"
    script.write_text(example.replace("/tmp/pfo", str(tmp_path / "pfo")) + "\nprint(opt.step, opt.switching)\n")
    (tmp_path / "gpus").mkdir(mode=0o700)
    ended = subprocess.run(
        [sys.executable, script],
        capture_output=True,
        text=True,
        check=True,
        env={
            **os.environ,
            "PFO_FS_GPU": "simulated",
            "PFO_FS_SIM_NODE": "A100 node",
            "PFO_FS_SIM_TIME_SCALE": "20",
            "PFO_FS_SIM_DIR": str(tmp_path / "gpus"),
        },
    )
    assert ended.stdout.split() == ["19", "device"]
