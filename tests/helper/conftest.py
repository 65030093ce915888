"""A host with a helper."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from helper_host import Host


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    (tmp_path / "shared").mkdir(mode=0o700)
    host = Host(tmp_path / "shared")
    yield host
    host.close()
