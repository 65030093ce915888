"""The default policy: profile while training, plan, verify, follow stragglers, and measure again when needed."""
