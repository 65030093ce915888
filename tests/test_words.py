"""One concept has one word: these were given up for the ones beside them."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]

INSTEAD = {
    "somebody": "the name of the process or person",
    "someone": "the name of the process or person",
    "nobody": "the name of the process or person that does not",
    "anybody": "the name of the process or person",
    "anyone": "the name of the process or person",
    "everybody": "all ranks, all users ...",
    "everyone": "all ranks, all users ...",
    "whoever": "the process that ...",
    "agent": "helper",
    "announcer": "status publisher",
    "calming": "change reduction",
    "cursor": "tracker",
    "diffuse": "greedy round",
    "doubtful": "noisy",
    "heed": "apply",
    "heeded": "applied",
    "heeds": "applies",
    "lockstep": "broadcast",
    "news": "status text, or what is new",
    "recall": "load",
    "roster": "rank registry",
    "shelf": "profile cache",
    "shelved": "kept in the profile cache",
    "warmth": "power drift",
    "wish": "request",
    "wished": "requested",
    "wishes": "requests",
}
FILES = [
    *sorted(path for path in (ROOT / "pfo_fs").rglob("*") if path.suffix in (".py", ".html")),
    *sorted((ROOT / "examples").glob("*.py")),
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
]


def words_of(line: str) -> list[str]:
    """The words of a line in lower case, those of `CamelCase` and `snake_case` names one by one."""
    return [word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", line)]


def test_words_that_were_given_up_are_gone() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}: {word!r}: rather {INSTEAD[word]}"
        for path in FILES
        for number, line in enumerate(path.read_text().splitlines(), 1)
        for word in words_of(line)
        if word in INSTEAD
    ]
    assert not found


def test_words_are_found_inside_names() -> None:
    assert words_of("class HostAgent: _rank_roster = URLWish2") == [
        "class", "host", "agent", "rank", "roster", "url", "wish"
    ]  # fmt: skip
