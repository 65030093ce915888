"""Real Slurm jobs, started by the scripts of `examples/slurm`, and what each ending leaves behind."""

import pytest
from slurm_endings import NAMES, Site

from pfo_fs.store import SharedDirectory

pytestmark = [pytest.mark.slow, pytest.mark.slurm]

# By ending: Slurm's state, and how each run of training ended by our records; None where nothing is sure.
TRUE_REASONS: dict[str, tuple[str, list[str] | None]] = {
    "success": ("COMPLETED", ["finished"]),
    "failure": ("FAILED", ["crashed"]),
    "scancel": ("CANCELLED", ["terminated"]),
    "all killed": ("FAILED", None),  # Slurm sends SIGTERM to what is left when it sees the first task die
    "time limit": ("COMPLETED", ["terminated", "finished"]),
    "warned": ("COMPLETED", ["terminated", "finished"]),
    "preemption": ("COMPLETED", ["terminated", "finished"]),
    "node lost": ("CANCELLED", None),  # these nodes share a helper, which sees the other rank die
    "daemon": ("CANCELLED", []),
}


@pytest.mark.parametrize(
    ("site", "name"), [(site, name) for site, names in NAMES.items() for name in names], indirect=["site"]
)
def test_a_job_leaves_default_clocks_no_process_and_the_true_reason_of_its_end(site: Site, name: str) -> None:
    left = site.ended(name)
    state, reasons = TRUE_REASONS[name]
    if (site.cluster.tracking, name) == ("cgroup", "scancel"):
        # When the task has ended, Slurm kills the rest of its cgroup: the helper races to write its record.
        reasons = None
    assert (left.state, left.reasons) == (state, left.reasons if reasons is None else reasons)
    assert set(left.clocks) <= {"reset"}
    assert left.processes == []
    if name == "daemon":
        daemon = SharedDirectory.open(site.shared_dir).read_daemon()
        assert daemon is not None
        assert daemon.stopped, "in order"
