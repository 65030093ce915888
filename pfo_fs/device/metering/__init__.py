"""What measures: marks and energy readings in, durations and powers of steps and instructions out."""
