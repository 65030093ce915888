"""One thin adapter per training framework; each imports its framework inside its functions."""
