"""Measures: makes durations and powers of steps and instructions from marks and energy readings."""
