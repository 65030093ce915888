"""The code blocks of pages about frameworks, which tests run on the real frameworks as people read them."""

import re
from pathlib import Path
from typing import Any

PAGES = Path(__file__).parents[1] / "docs"


def run_block(page: str, section: str, place: int, shared_dir: str = "/shared/pfo", **names: Any) -> dict[str, Any]:
    """Runs a Python block of a section of a page, and returns the names that it leaves.

    Args:
        page: The name of the page.
        section: The section's heading.
        place: Which block of the section, from 0.
        shared_dir: Stands for the page's shared directory.
        names: What the block takes for granted.
    """
    text = re.sub(r"^```bash\n.*?^```$", "", (PAGES / f"{page}.md").read_text(), flags=re.MULTILINE | re.DOTALL)
    part = text.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    blocks = re.findall(r"^```python\n(.*?)^```", part, re.MULTILINE | re.DOTALL)
    exec(blocks[place].replace("/shared/pfo", shared_dir), names)
    return names
