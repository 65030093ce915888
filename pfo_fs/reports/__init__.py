"""The state of jobs, the report page with its pictures, and traces; names load on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pfo_fs.reports.collect import JobData, Window, collect_job
    from pfo_fs.reports.page import render_page
    from pfo_fs.reports.trace import window_to_trace, write_trace
    from pfo_fs.reports.trace_csv import write_trace_csv

_HOME = {
    "JobData": "collect",
    "Window": "collect",
    "collect_job": "collect",
    "render_page": "page",
    "window_to_trace": "trace",
    "write_trace": "trace",
    "write_trace_csv": "trace_csv",
}

__all__ = [
    "JobData",
    "Window",
    "collect_job",
    "render_page",
    "window_to_trace",
    "write_trace",
    "write_trace_csv",
]


if not TYPE_CHECKING:  # so that mypy knows the names above only

    def __getattr__(name: str) -> Any:
        if name in _HOME:
            from importlib import import_module

            return getattr(import_module(f"pfo_fs.reports.{_HOME[name]}"), name)
        raise AttributeError(f"module 'pfo_fs.reports' has no attribute {name!r}")
