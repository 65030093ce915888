"""Scheduling one job through its folder; the daemon does it for many jobs, rank 0's helper for its own."""

from pfo_fs.coordination.coordinator import Coordinator

__all__ = ["Coordinator"]
