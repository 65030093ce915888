"""No test replaces the clock of the whole process, which other threads and pytest itself use."""

import re
from pathlib import Path

TESTS = Path(__file__).parent
TIME = r"([\w.]+\.)?time"
REPLACES = re.compile(
    rf'\b(setattr|delattr|patch|object)\(\s*("{TIME}\.\w+"|{TIME},)|^\s*(del {TIME}\.\w+$|{TIME}\.\w+ = )', re.MULTILINE
)


def test_no_test_replaces_the_clock_of_the_whole_process() -> None:
    of_its_own = TESTS / "processes" / "faulty" / "sitecustomize.py"  # in processes that are there for nothing else
    for path in TESTS.rglob("*.py"):
        found = path != of_its_own and REPLACES.search(path.read_text())
        assert not found, f"{path}: {found[0]}: clock.replace_time replaces that of a package"
