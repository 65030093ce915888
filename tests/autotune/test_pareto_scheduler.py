"""The arguments of the default policy; whole jobs are in `tests/simulator/test_closed_loop.py`."""

from __future__ import annotations

import pytest

from pfo_fs.autotune.pareto_scheduler import ParetoScheduler
from pfo_fs.errors import PlanError
from pfo_fs.models import JobInfo, RankInfo
from pfo_fs.settings import PFOSettings


def test_an_argument_that_no_release_has_had_is_named() -> None:
    job = JobInfo(pp_degree=1, dp_degree=1, tp_degree=1, world_size=1)
    rank = RankInfo(rank=0, dp_rank=0, pp_rank=0, tp_rank=0, available_frequencies=[1410])
    with pytest.raises(PlanError, match="no argument nonsense"):
        ParetoScheduler(job, [rank], PFOSettings(), nonsense=1)
