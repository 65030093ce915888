"""GPUs, the clock process that sets their clocks and measures, and the page shared with it.

This module imports nothing, since the clock process imports it and must start fast.
"""
