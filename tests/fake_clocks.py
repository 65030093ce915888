"""A clock process for tests of training: the page that both share, without a process."""

from __future__ import annotations

from pfo_fs.device import shared_page
from pfo_fs.device.shared_page import MarkReader, SharedPage


class FakeClocks:
    """A clock process that remembers what it was asked for."""

    def __init__(self) -> None:
        self.page = SharedPage.create()
        self.words = self.page.words
        self.name_id = self.page.name_id
        self.rings = 0
        self.reader = MarkReader(self.words)

    def ring_doorbell(self) -> None:
        self.words[shared_page.SLEEPING] = 0
        self.rings += 1

    def check(self) -> bool:
        pass

    @property
    def target(self) -> int:
        return int(self.words[shared_page.TARGET])

    def kinds(self) -> list[int]:
        return [code & 0xFF for _, code in self.reader.read(everything=True) or []]
