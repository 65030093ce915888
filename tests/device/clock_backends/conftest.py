"""A host on which zeusd may run."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from clock_stand_ins import Zeusd


@pytest.fixture(autouse=True)
def zeusd_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where zeusd is looked for."""
    for variable in ("PFO_FS_CLOCK_BACKEND", "ZEUSD_TOKEN"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("ZEUSD_SOCK_PATH", str(tmp_path / "zeusd.sock"))
    return tmp_path / "zeusd.sock"


@pytest.fixture
def zeusd(zeusd_socket: Path) -> Iterator[Zeusd]:
    stand_in = Zeusd(zeusd_socket)
    yield stand_in
    stand_in.close()
