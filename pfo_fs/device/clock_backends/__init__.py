"""The ways to set a GPU's clocks and power limit, one module each, and the choice between them (`choice.py`).

Reading (energy, clocks on offer, throttling) stays with NVML, whatever sets the clocks.
"""
