"""Chaos: jobs in which processes are killed and stopped and files fail at random, from a seed: `docs/failures.md`."""
