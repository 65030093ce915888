"""The one process per host that reads and writes the shared directory for the ranks of that host."""
