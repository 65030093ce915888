"""The ways to set a GPU's clocks and power limit, one module each; `gpu/spec.py` chooses between them.

Reading (energy, clocks on offer, throttling) stays with NVML, whatever sets the clocks.
"""
