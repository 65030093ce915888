"""A Triton kernel that adds one array to another with as many thread blocks as it is started with."""

# Without `from __future__ import annotations`: Triton evaluates the annotations of its kernels.
import triton
import triton.language as tl


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def add(target, source, count, size: tl.constexpr):  # type: ignore[no-untyped-def]
    """Adds the first `count` numbers of `source` to `target`."""
    block = tl.program_id(0)
    blocks = tl.num_programs(0)
    for start in range(block * size, count, blocks * size):
        places = start + tl.arange(0, size)
        inside = places < count
        mine = tl.load(target + places, mask=inside)
        theirs = tl.load(source + places, mask=inside)
        tl.store(target + places, mine + theirs, mask=inside)
