"""Scheduling one job through its folder; the daemon does it for many jobs, rank 0's helper for its own."""

from pfo_fs.coordination.coordinator import Coordinator
from pfo_fs.coordination.site_policy import SitePolicy, read_site_policy

__all__ = ["Coordinator", "SitePolicy", "read_site_policy"]
