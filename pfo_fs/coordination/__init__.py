"""Schedules jobs through their folders: the daemon schedules many, rank 0's helper its own."""

from pfo_fs.coordination.coordinator import Coordinator
from pfo_fs.coordination.site_policy import SitePolicy, read_site_policy

__all__ = ["Coordinator", "SitePolicy", "read_site_policy"]
