"""The default policy: measure while training, plan for what varies, keep what is surely worth it, follow changes."""
