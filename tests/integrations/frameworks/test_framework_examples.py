"""The examples that people start with, two iterations on two ranks without a GPU."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[3] / "examples"


@pytest.mark.parametrize(("framework", "example"), [("deepspeed", "deepspeed"), ("megatron.core", "megatron")])
def test_the_example_trains_on_a_laptop(run_program: Callable[..., list[str]], framework: str, example: str) -> None:
    pytest.importorskip(framework, reason=f"needs {framework}; .ci/frameworks installs it")
    outputs = run_program(2, os.fspath(EXAMPLES / f"train_{example}.py"), "--iterations", "2")
    assert not any("expects" in output for output in outputs)  # no warning that the order differs
