"""Sets clocks: decides which clock is requested when, takes turns with the host's other processes, puts clocks back."""
