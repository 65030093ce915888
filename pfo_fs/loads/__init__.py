"""Clocks from loads: where ranks get unequal work in each step, and the work is known before the step begins.

The load of a micro-batch is a short vector of numbers that its work depends on, such as its number of tokens. `readers`
makes loads of what training code has; `durations` learns how long instructions take at a load and a clock; `choice`
finds the clock of each pipeline for one step, and controls how much time may be lost.
"""

from pfo_fs.loads.readers import (
    from_attention_mask,
    from_batch,
    from_cu_seqlens,
    from_lengths,
    from_position_ids,
    tokens,
)

__all__ = ["from_attention_mask", "from_batch", "from_cu_seqlens", "from_lengths", "from_position_ids", "tokens"]
