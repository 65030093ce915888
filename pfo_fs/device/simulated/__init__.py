"""GPUs that are simulated, and the physics that they follow."""
