"""The power-limit optimizer in trainers without a pipeline, on two processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("transformers", reason="needs transformers: pip install 'pfo-fs[huggingface]'")
pytest.importorskip("accelerate", reason="needs accelerate: pip install 'pfo-fs[huggingface]'")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def all_facts(run_ranks: Callable[..., Any]) -> Any:
    """What each of two ranks told of both trainers."""
    return run_ranks("trainers_program", 2, cases={name: {"trainer": name} for name in ("accelerate", "transformers")})


@pytest.mark.parametrize("trainer", ["accelerate", "transformers"])
def test_two_processes_measure_the_same_limits_choose_one_and_give_it_back(
    all_facts: list[dict[str, Any]], trainer: str
) -> None:
    first, second = [seen[trainer] for seen in all_facts]
    assert first["gpu"] != second["gpu"]
    assert first["measured"] == second["measured"] == [500, 300, 100]
    assert first["state"] == second["state"]
    assert first["state"].startswith("Done(")
    assert first["set"] == second["set"]
    assert first["set"][-1] == 500
