"""Real Slurm jobs, started by the scripts of `examples/slurm`, and what each ending leaves behind."""

from __future__ import annotations

import pytest
from slurm_endings import NAMES, Site

from pfo_fs.store import SharedDirectory

pytestmark = [pytest.mark.slow, pytest.mark.slurm, pytest.mark.timeout(300)]

# By ending: Slurm's state, and of each run what training recorded and why Slurm ended it.
TRUE_REASONS: dict[str, tuple[str, list[str] | None, list[str]]] = {
    "success": ("COMPLETED", ["finished"], ["finished"]),
    "failure": ("FAILED", ["crashed"], ["failed"]),
    "scancel": ("CANCELLED", ["terminated"], ["cancelled"]),
    "all killed": ("FAILED", None, ["failed"]),  # Slurm sends SIGTERM to what is left when it sees the first task die
    "time limit": ("COMPLETED", ["terminated", "finished"], ["time limit", "finished"]),
    "warned": ("COMPLETED", ["terminated", "finished"], ["time limit", "finished"]),
    "requeue": ("COMPLETED", ["terminated", "finished"], ["requeued", "finished"]),
    "preemption": ("COMPLETED", ["terminated", "finished"], ["preempted", "finished"]),
    "array": ("COMPLETED COMPLETED", ["finished", "finished"], ["finished", "finished"]),
    "node lost": ("CANCELLED", None, ["node lost"]),  # these nodes share a helper, which sees the other rank die
    "daemon": ("CANCELLED", [], []),
}


@pytest.mark.parametrize(
    ("site", "name"), [(site, name) for site, names in NAMES.items() for name in names], indirect=["site"]
)
def test_a_job_leaves_default_clocks_no_process_and_the_true_reason_of_its_end(site: Site, name: str) -> None:
    left = site.ended(name)
    state, reasons, causes = TRUE_REASONS[name]
    assert (left.state, left.reasons, left.causes) == (state, reasons or left.reasons, causes)
    assert set(left.clocks) <= {"reset"}
    assert left.processes == []


@pytest.mark.parametrize("site", ["linuxproc"], indirect=True)
def test_the_exit_code_of_a_job_that_failed_is_on_record(site: Site) -> None:
    assert [end.exit_code for end in site.ended("failure").batch_ends if end is not None] == [3]


@pytest.mark.parametrize("site", ["linuxproc"], indirect=True)
def test_a_daemon_whose_job_is_cancelled_stops_in_order(site: Site) -> None:
    site.ended("daemon")
    daemon = SharedDirectory.open(site.shared_dir).read_daemon()
    assert daemon is not None
    assert daemon.stopped
