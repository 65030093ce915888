"""The state of jobs, the report page with its pictures, traces, and metrics."""
