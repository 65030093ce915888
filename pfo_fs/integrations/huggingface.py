"""The power-limit optimizer as a callback of the Hugging Face Trainer; making one imports transformers."""

from __future__ import annotations

import os
from functools import lru_cache
from types import TracebackType
from typing import Any, Literal

from pfo_fs.errors import ConfigError
from pfo_fs.power_limit.monitor import Monitor
from pfo_fs.power_limit.optimizer import GlobalPowerLimitOptimizer
from pfo_fs.power_limit.selectors import OptimumSelector


@lru_cache
def _with_callback_base(kind: type) -> type:
    """Returns `kind` with `transformers.TrainerCallback` among its bases."""
    try:
        from transformers import TrainerCallback
    except ImportError as error:
        raise ConfigError(f"{kind.__name__} needs transformers: pip install 'pfo-fs[huggingface]'") from error
    return type(kind.__name__, (kind, TrainerCallback), {"__module__": kind.__module__, "__doc__": kind.__doc__})


class HFGlobalPowerLimitOptimizer:
    """`GlobalPowerLimitOptimizer` as a `transformers.TrainerCallback`.

        Trainer(..., callbacks=[HFGlobalPowerLimitOptimizer(optimum_selector=MaxSlowdownConstraint(1.05))])

    Make the `TrainingArguments` first: they set up `torch.distributed`. The arguments are those of
    `GlobalPowerLimitOptimizer`.
    The earlier limits are restored when training ends, and when the process ends. After an exception in a process that
    goes on (a notebook), call `close`, or use the optimizer in a `with` statement.

    Attributes:
        optimizer: The `GlobalPowerLimitOptimizer`.

    Raises:
        ConfigError: transformers is not installed. It also raises what `GlobalPowerLimitOptimizer` raises.
    """

    def __new__(cls, *_args: Any, **_options: Any) -> HFGlobalPowerLimitOptimizer:
        kind: Any = _with_callback_base(cls)  # type: ignore[arg-type]  # classes are hashable
        made: HFGlobalPowerLimitOptimizer = object.__new__(kind)
        return made

    def __init__(
        self,
        monitor: Monitor | None = None,
        optimum_selector: OptimumSelector | None = None,
        wait_steps: int = 1,
        warmup_steps: int = 10,
        profile_steps: int = 40,
        pl_step: int = 25,
        profile_path: str | os.PathLike[str] | None = None,
        shared_dir: str | os.PathLike[str] | None = None,
        *,
        search: Literal["full", "coarse-to-fine"] = "full",
        reprofile_drift: float | None = None,
    ) -> None:
        self.optimizer = GlobalPowerLimitOptimizer(
            monitor,
            optimum_selector,
            wait_steps,
            warmup_steps,
            profile_steps,
            pl_step,
            profile_path,
            shared_dir,
            search=search,
            reprofile_drift=reprofile_drift,
        )

    # The Trainer passes arguments, state and control; the optimizer needs none of them.

    def on_epoch_begin(self, *_args: Any, **_kwargs: Any) -> None:
        """An epoch begins."""
        self.optimizer.on_epoch_begin()

    def on_epoch_end(self, *_args: Any, **_kwargs: Any) -> None:
        """An epoch ends."""
        self.optimizer.on_epoch_end()

    def on_step_begin(self, *_args: Any, **_kwargs: Any) -> None:
        """A step begins."""
        self.optimizer.on_step_begin()

    def on_step_end(self, *_args: Any, **_kwargs: Any) -> None:
        """A step ends."""
        self.optimizer.on_step_end()

    def on_train_end(self, *_args: Any, **_kwargs: Any) -> None:
        """Training ends; the earlier limits are restored."""
        self.optimizer.pause()

    def close(self) -> None:
        """Restores the earlier limits and finishes writing."""
        self.optimizer.close()

    def __enter__(self) -> HFGlobalPowerLimitOptimizer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
