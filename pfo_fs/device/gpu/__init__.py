"""GPUs: their interface, NVIDIA's by NVML, which one training uses, and what to do when a driver refuses."""
