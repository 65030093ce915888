"""How much of a daemon one job may take; `docs/threat-model.md` states the numbers.

What a job has beyond them is left out where the policy can do without it (clocks, results); otherwise that job is not
scheduled, its status says why, and other jobs go on.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PolicyLimits:
    """What the process of a job's policy may take.

    Attributes:
        memory_bytes: Memory, beyond what the process has at its start.
        cpu_s: Processor time in s for one call: to take in results, or to make a plan.
        wall_s: Time in s for the same; longer, since many policies may share few processors.
    """

    memory_bytes: int = 1 << 30
    cpu_s: int = 300
    wall_s: float = 900.0


POLICY_LIMITS = PolicyLimits()
PLAN_LIMITS = PolicyLimits(memory_bytes=256 << 20, cpu_s=60, wall_s=300.0)
"""What the process may take that reads the largest plan. It needs half of that memory, and a tenth of that time."""
PLANS_READ_AT_ONCE = 4
"""So many plans of 256 MiB take as much memory as one policy; further jobs wait for them."""
MOST_REPLY_BYTES = 64 << 20
"""The largest answer of a policy's process."""

MOST_CLOCKS = 256
"""Different clocks of all GPUs of a job together that a policy gets; of more, it gets some, at even distances."""
MOST_CLOCK_LISTS = 64
"""Different lists of clocks in a job: one for each kind of GPU, and for each limit of its clocks."""
MOST_RESULT_BYTES = 64 << 20
"""Results of one schedule; of more, those of the pipelines with the lowest numbers are used."""
MOST_REPLAYED = 20_000
"""Schedules of the policy that are replayed, and slow pipelines in what they were made for."""
