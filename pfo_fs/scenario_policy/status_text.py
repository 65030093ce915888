"""What is believed of the plan in force, as text for the status."""

from __future__ import annotations

from pfo_fs.scenario_policy.judgements import Judgement

TIMES_THE_ERROR = 2.0
"""Figures are given with so many standard errors: the true one is within that in 95 % of all cases."""


def believed_text(found: Judgement, iterations: int) -> str:
    """Returns what is believed of the plan in force, each figure with its error.

    A figure that is smaller than its error is no fact: then only the error is said.

    Args:
        found: What is believed.
        iterations: Number of iterations that it is based on.
    """
    if not found.saved and not found.saved_error:
        return "all at the highest clocks"
    saved, saved_error = found.saved, TIMES_THE_ERROR * found.saved_error
    slower, slower_error = found.slower, TIMES_THE_ERROR * found.late_error
    if saved > saved_error:
        energy = f"{saved:.1%} less energy (± {100 * saved_error:.1f})"
    else:
        energy = f"energy saved not known yet (within {max(saved_error, abs(saved)):.1%})"
    if slower > slower_error:
        time = f"{slower:.2%} slower (± {100 * slower_error:.2f})"
    elif slower < -slower_error:
        time = f"{-slower:.2%} faster (± {100 * slower_error:.2f})"
    else:
        time = f"no slower within {max(slower_error, 0.0001):.2%}"
    return f"{energy}, {time} than at the highest clocks, over {iterations:,} iterations"
