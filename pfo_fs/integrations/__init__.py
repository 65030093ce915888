"""Adapters to training frameworks, one module each; they import the framework inside functions."""
