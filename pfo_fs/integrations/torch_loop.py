"""The power-limit optimizer in a training loop of the user's own: plain PyTorch, DDP, FSDP, or accelerate.

A step ends when the torch optimizer has made a step, so gradient accumulation needs no further call.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pfo_fs.errors import ConfigError
from pfo_fs.power_limit.optimizer import GlobalPowerLimitOptimizer

if TYPE_CHECKING:
    from accelerate.optimizer import AcceleratedOptimizer
    from torch.optim import Optimizer
    from torch.utils.hooks import RemovableHandle


@contextmanager
def power_limit_loop(
    optimizer: Optimizer | AcceleratedOptimizer, **options: object
) -> Iterator[GlobalPowerLimitOptimizer]:
    """Runs a `GlobalPowerLimitOptimizer` for the training loop in the block; the loop itself does not change.

        with power_limit_loop(optimizer, optimum_selector=MaxSlowdownConstraint(1.05)) as plo:
            for batch in loader:
                ...
                optimizer.step()

    Put an evaluation or a checkpoint into `with plo.evaluation():`, so that it is not measured. At the end of the
    block, also by an exception, the earlier levels are restored and the hook is removed.

    Args:
        optimizer: The torch optimizer whose steps are counted, or what accelerate has made of it.
        options: Arguments of `GlobalPowerLimitOptimizer`, by name.

    Raises:
        ConfigError: With `strict=True`: `optimizer` is no torch optimizer. It also raises what
            `GlobalPowerLimitOptimizer` raises.
    """
    while hasattr(getattr(optimizer, "optimizer", None), "register_step_post_hook"):  # accelerate's class has no hooks
        optimizer = optimizer.optimizer
    with GlobalPowerLimitOptimizer(**options) as plo:  # type: ignore[arg-type]
        hook: RemovableHandle | None = None

        def step_ended(*_args: object) -> None:
            plo.on_step_end()
            plo.on_step_begin()

        plo.on_step_begin()
        with plo.guard:
            if not hasattr(optimizer, "register_step_post_hook"):
                name = type(optimizer).__name__
                raise ConfigError(f"power_limit_loop needs a torch.optim.Optimizer, and got a {name}")
            hook = optimizer.register_step_post_hook(step_ended)
        try:
            yield plo
        finally:
            if hook is not None:
                hook.remove()
