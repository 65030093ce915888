"""GPUs: their interface, NVIDIA GPUs by NVML, how to find training's GPU, and what to do when a driver refuses."""
