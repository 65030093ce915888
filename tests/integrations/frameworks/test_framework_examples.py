"""The examples that people start with, on two ranks without a GPU."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[3] / "examples"


@pytest.mark.parametrize(
    ("framework", "package", "command"),
    [
        ("DeepSpeed", "deepspeed", ["train_deepspeed.py", "--iterations", "2"]),
        ("Megatron-Core", "megatron.core", ["train_megatron.py"]),
    ],
)
def test_the_example_trains_on_a_laptop(
    run_program: Callable[..., tuple[str, Path]], framework: str, package: str, command: list[str]
) -> None:
    pytest.importorskip(package, reason=f"needs {framework}; .ci/frameworks installs it")
    output, _ = run_program(2, os.fspath(EXAMPLES / command[0]), *command[1:])
    assert "expects" not in output  # no warning that the order differs
