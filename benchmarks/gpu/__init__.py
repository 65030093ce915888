"""Measurements on a real NVIDIA GPU that change none of its settings; see benchmarks/gpu/README.md."""
