"""The next default policy, beside the present one until it is better in all paired runs: one model, one rule."""
