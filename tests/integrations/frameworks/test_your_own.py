"""The adapter in examples/colossalai_adapter.py, on ColossalAI's real 1F1B schedule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("colossalai", reason="needs ColossalAI; .ci/frameworks installs it")


def test_the_adapter_of_the_example_follows_colossalai(run_ranks: Callable[..., Any]) -> None:
    for rank, seen in enumerate(run_ranks("your_own", 2)):
        assert seen["steps"] == [seen["orders"][rank]] * 2  # and nothing of the evaluation
        assert not seen["errors"]
        assert seen["same_weights"]
        assert seen["left_patched"] == []
