"""Clock processes without a process, and ranks without training."""

from collections.abc import Iterator

import pytest
from fake_clocks import FakeClocks
from schedule_rank import Rank

from pfo_fs.device.shared_page import SharedPage


@pytest.fixture
def clocks() -> FakeClocks:
    return FakeClocks()


@pytest.fixture
def page() -> Iterator[SharedPage]:
    made = SharedPage.create()
    yield made
    made.close()


@pytest.fixture
def told() -> list[str]:
    """The problems that people were told."""
    return []


@pytest.fixture
def rank() -> Rank:
    return Rank()
