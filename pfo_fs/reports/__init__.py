"""What a job did, for people: one page of HTML, and traces for Perfetto. Only reads the shared directory."""

from pfo_fs.reports.collect import JobData, Window, collect
from pfo_fs.reports.page import render_page
from pfo_fs.reports.trace import window_to_trace, write_trace

__all__ = ["JobData", "Window", "collect", "render_page", "window_to_trace", "write_trace"]
