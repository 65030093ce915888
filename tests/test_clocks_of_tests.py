"""No test replaces the clock of the whole process, which other threads and pytest itself use."""

from __future__ import annotations

import ast
import re
from pathlib import Path

TESTS = Path(__file__).parent


def is_time(node: ast.expr) -> bool:
    """Whether an expression is the module `time`, or the name of something in it."""
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str) and bool(re.search(r"(^|\.)time\.\w+$", node.value))
    return (isinstance(node, ast.Name) and node.id == "time") or (
        isinstance(node, ast.Attribute) and node.attr == "time"
    )


def replacements(source: str) -> list[int]:
    """The lines that replace something in the module `time`."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and node.args:
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if name in ("setattr", "delattr", "patch", "object") and is_time(node.args[0]):
                found.append(node.lineno)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del) and is_time(node.value):
            found.append(node.lineno)
    return found


def test_no_test_replaces_the_clock_of_the_whole_process() -> None:
    of_its_own = TESTS / "processes" / "faulty" / "sitecustomize.py"  # in processes that are there for nothing else
    paths = [path for path in TESTS.rglob("*.py") if path != of_its_own]
    lines = {str(path.relative_to(TESTS)): replacements(path.read_text()) for path in paths}
    assert {path: found for path, found in lines.items() if found} == {}, (
        "clock.replace_time replaces that of a package"
    )
