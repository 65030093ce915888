"""Clock processes without a process, and ranks without training."""

from __future__ import annotations

import pytest
from fake_clocks import FakeClocks
from schedule_rank import Rank


@pytest.fixture
def clocks() -> FakeClocks:
    return FakeClocks()


@pytest.fixture
def told() -> list[str]:
    """The problems that people were told."""
    return []


@pytest.fixture
def rank() -> Rank:
    return Rank()
