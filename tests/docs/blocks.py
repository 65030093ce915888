"""Finds the code blocks of README and docs, with what a comment right above a block says about it.

<!-- not run: REASON -->   the block is not run here; its options and imports are checked all the same
<!-- slow -->              it is run by a test that is marked `slow`
<!-- prints -->            the block shows what the one before it prints
<!-- file: NAME -->        the block is the content of this file, which later blocks use
"""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))

_FENCE = re.compile(
    r"^(?:<!-- (?P<note>[^\n]*?) -->\n)?^(?P<indent> *)```(?P<language>[a-z]*)[^\n]*\n(?P<text>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)
_NUMBER = re.compile(r"([+\-−]?\d[\d,]*(?:\.\d+)?)( ?%)?")


@dataclass(frozen=True)
class Block:
    """A fenced block: page and line, what is written after the fence, its content, and the comment above it."""

    page: str
    line: int
    language: str
    text: str
    note: str

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def why_not_run(self) -> str | None:
        """The reason why it is not run here, if it is not."""
        kind, _, reason = self.note.partition(": ")
        return reason if kind == "not run" else None


def blocks_of(page: Path) -> list[Block]:
    text, found = page.read_text(), []
    for match in _FENCE.finditer(text):
        line = 1 + text.count("\n", 0, match.start("language"))
        content = re.sub(rf"^{match['indent']}", "", match["text"], flags=re.MULTILINE)
        found.append(Block(str(page.relative_to(ROOT)), line, match["language"], content, match["note"] or ""))
    return found


def all_blocks() -> list[Block]:
    return [block for page in PAGES for block in blocks_of(page)]


def differences(shown: str, printed: str) -> list[str]:
    """Returns the lines of `shown` that `printed` does not have.

    Spaces and the frames of tables do not count. Percentages may differ by 0.3 points, other numbers by 3 %.
    """
    actual = list(map(_plain, printed.splitlines()))
    return [line for line in map(_plain, shown.splitlines()) if not any(_alike(line, other) for other in actual)]


def _plain(line: str) -> str:
    return " ".join(re.sub(r"[\u2500-\u257f]", " ", line).split())


def _alike(shown: str, actual: str) -> bool:
    if _NUMBER.sub("#", shown) != _NUMBER.sub("#", actual):
        return False
    return all(
        abs(_value(ours) - _value(theirs)) <= (0.3 if percent else 0.03 * abs(_value(theirs)))
        for (ours, percent), (theirs, _) in zip(_NUMBER.findall(shown), _NUMBER.findall(actual), strict=True)
    )


def _value(number: str) -> float:
    return float(number.replace(",", "").replace("−", "-"))
