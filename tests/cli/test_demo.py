"""`pfo-fs demo` finds what it needs; the whole demo takes minutes and is run by hand."""

from __future__ import annotations

from pathlib import Path

from pfo_fs.cli.demo import EXAMPLE_FOLDERS, example_path

ROOT = Path(__file__).parents[2]


def test_the_demo_finds_the_training_script_of_a_checkout() -> None:
    assert example_path("train_pipeline.py") == ROOT / "examples" / "train_pipeline.py"


def test_the_demo_looks_first_where_the_wheel_puts_the_training_script() -> None:
    assert '"examples/train_pipeline.py" = "pfo_fs/examples/train_pipeline.py"' in (ROOT / "pyproject.toml").read_text()
    assert EXAMPLE_FOLDERS[0] == ROOT / "pfo_fs" / "examples"
