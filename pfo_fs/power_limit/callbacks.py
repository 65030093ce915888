"""Callbacks of Zeus's optimizers that this optimizer does not need, but training loops written for Zeus call."""

from __future__ import annotations


class UnusedCallbacks:
    """Callbacks without effect; `GlobalPowerLimitOptimizer` has those with an effect."""

    def on_epoch_begin(self) -> None:
        """An epoch begins."""

    def on_step_end(self) -> None:
        """A step ends."""

    def on_train_begin(self) -> None:
        """Training begins."""

    def on_evaluate(self, metric: float) -> None:
        """The model was evaluated."""

    def on_instruction_begin(self, name: str) -> None:
        """An instruction begins."""

    def on_instruction_end(self, name: str) -> None:
        """An instruction ends."""
