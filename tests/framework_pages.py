"""The code blocks of docs/frameworks, which tests run on the real frameworks as people read them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

PAGES = Path(__file__).parents[1] / "docs" / "frameworks"


def run_block(page: str, place: int, shared_dir: str = "/shared/pfo", **names: Any) -> dict[str, Any]:
    """Runs a Python block of a page, and returns the names that it leaves.

    Args:
        page: The name of the page.
        place: Which block, from 0.
        shared_dir: Stands for the page's shared directory.
        names: What the block takes for granted.
    """
    blocks = re.findall(r"^```python\n(.*?)^```", (PAGES / f"{page}.md").read_text(), re.MULTILINE | re.DOTALL)
    exec(blocks[place].replace("/shared/pfo", shared_dir), names)
    return names
