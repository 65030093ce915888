"""How a training process ended, for the job's record."""

from __future__ import annotations


def how_it_ended(error: BaseException | None) -> tuple[str, str]:
    """Returns reason and message of the end of training."""
    if error is None:
        return "finished", ""
    if isinstance(error, KeyboardInterrupt):
        return "interrupted", ""
    if isinstance(error, SystemExit) and not isinstance(error.code, str):
        return ("crashed", f"exit code {error.code}") if error.code else ("finished", "")
    text = " ".join(str(error).split())
    return "crashed", f"{type(error).__name__}{': ' if text else ''}{text}"[:300]
