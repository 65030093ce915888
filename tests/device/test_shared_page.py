"""The page shared by training and its clock process."""

import os

import pytest

from pfo_fs.device import shared_page
from pfo_fs.device.shared_page import MarkReader, SharedPage


def write_marks(words: memoryview, first: int, count: int) -> None:
    for index in range(first, first + count):
        slot = shared_page.RING + 2 * (index & shared_page.RING_MASK)
        words[slot], words[slot + 1] = index, shared_page.BEGIN
        words[shared_page.HEAD] = index + 1


def test_names_cross_the_page_whatever_they_are() -> None:
    ours = SharedPage.create()
    theirs = SharedPage(os.dup(ours.fd))
    names = ["forward", "backward_weight", "Rückwärts", "x" * 64, "ü" * 64]
    numbers = [ours.name_id(name) for name in names]
    assert numbers == [ours.name_id(name) for name in names]
    assert [theirs.name(number) for number in numbers] == [*names[:4], "ü" * 32]
    assert theirs.name(99) == "unknown"


def test_a_full_name_table_takes_the_rest_as_other() -> None:
    ours = SharedPage.create()
    numbers = [ours.name_id(f"name {i}") for i in range(shared_page.MAX_NAMES + 50)]
    assert max(numbers) == shared_page.MAX_NAMES - 1
    assert ours.name(numbers[-1]) == "other"
    assert ours.name(numbers[0]) == "name 0"


def test_foreign_memory_is_refused() -> None:
    fd = os.memfd_create("foreign")
    os.ftruncate(fd, shared_page.WORDS * 8)
    with pytest.raises(ValueError, match="release"):
        SharedPage(fd)


def test_marks_are_taken_only_up_to_the_head_of_the_previous_look() -> None:
    words = SharedPage.create().words
    reader = MarkReader(words)
    write_marks(words, 0, 3)
    assert reader.read() == []
    write_marks(words, 3, 2)
    assert reader.read() == [(0, shared_page.BEGIN), (1, shared_page.BEGIN), (2, shared_page.BEGIN)]
    assert reader.read() == [(3, shared_page.BEGIN), (4, shared_page.BEGIN)]
    write_marks(words, 5, 1)
    assert reader.read(everything=True) == [(5, shared_page.BEGIN)]


def test_marks_survive_the_wrap_of_the_ring() -> None:
    words = SharedPage.create().words
    reader = MarkReader(words)
    seen: list[int] = []
    written = 0
    while written < 2 * shared_page.RING_MARKS + 7:
        write_marks(words, written, 1000)
        written += 1000
        seen += [first for first, _ in reader.read()]
    seen += [first for first, _ in reader.read(everything=True) or []]
    assert seen == list(range(written))


@pytest.mark.parametrize("more", [0, 1])
def test_marks_that_training_may_have_written_over_are_lost_and_reading_goes_on(more: int) -> None:
    """With exactly a full ring unread, training may be in the middle of writing over the oldest mark."""
    words = SharedPage.create().words
    reader = MarkReader(words)
    reader.read()
    write_marks(words, 0, shared_page.RING_MARKS + more)
    reader.read()
    assert reader.read() is None
    write_marks(words, shared_page.RING_MARKS + more, 2)
    reader.read()
    assert [first for first, _ in reader.read() or []] == [shared_page.RING_MARKS + more + n for n in (0, 1)]
