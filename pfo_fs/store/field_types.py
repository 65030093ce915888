"""Types with limits of the fields of records that only records have; the others are in `pfo_fs/models.py`."""

from __future__ import annotations

import math
from typing import Annotated, Any

from pydantic import Field

RandomId = Annotated[str, Field(max_length=64, pattern=r"^[ -~]*$")]
"""Random letters and digits; they are compared, never shown."""
ProcessId = Annotated[int, Field(ge=0, le=2**31)]
PlanFileName = Annotated[str, Field(pattern=r"^(stage|rank)-\d{1,7}\.[0-9a-f]{12}\.json$")]
RankGroup = Annotated[str, Field(pattern=r"^(stage|rank):\d{1,7}$")]
Sha256 = Annotated[str, Field(max_length=64, pattern=r"^[ -~]*$")]


def plain_json(value: dict[str, Any]) -> dict[str, Any]:
    """Refuses arguments that are nested deeply, not finite, too long or too many."""
    waiting: list[tuple[Any, int]] = [(value, 0)]
    seen = 0
    while waiting:
        item, depth = waiting.pop()
        seen += 1
        if seen > 100_000 or depth > 16:
            raise ValueError("too many values, or nested too deeply")
        if isinstance(item, dict):
            waiting += [(part, depth + 1) for pair in item.items() for part in pair]
        elif isinstance(item, (list, tuple)):
            waiting += [(part, depth + 1) for part in item]
        elif isinstance(item, str):
            if len(item) > 10_000 or not item.replace("\n", "").replace("\t", "").isprintable():
                raise ValueError("a text has control characters or is too long")
        elif isinstance(item, (int, float)) and not (abs(item) <= 2**63 and math.isfinite(item)):
            raise ValueError("a number is not finite or too large")
    return value
