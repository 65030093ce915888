"""The adapter in examples/colossalai_adapter.py, on ColossalAI's real 1F1B schedule."""

import pytest
from followed import *  # noqa: F403

pytest.importorskip("colossalai", reason="needs ColossalAI; .ci/frameworks installs it")

PROGRAM = "your_own"
RUNS = {2: {"1F1B": {}}}
KINDS = {"1F1B": (2, 2)}
