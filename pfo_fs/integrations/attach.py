"""One line for all frameworks: finds out which one an object belongs to, without importing any."""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

from pfo_fs.errors import ConfigError
from pfo_fs.integrations.pipeline_marks import Attachment

_ADAPTERS = {
    "torch.distributed.pipelining": "torch_pipelining",
    "deepspeed": "deepspeed",
    "torchtitan": "torchtitan",
}


def attach(thing: Any, shared_dir: str | os.PathLike[str], **options: Any) -> Attachment:
    """Follows the steps of a framework's object; a collective call of all ranks.

        pfo = pfo_fs.attach(schedule, "/shared/pfo")

    Args:
        thing: A schedule of `torch.distributed.pipelining`, a pipeline engine of DeepSpeed, or a trainer of torchtitan.
        shared_dir: The directory that all ranks, the daemon and users share.
        options: Other arguments of `PFOFileOptimizer`.

    Returns:
        What follows until its `close()`; also a context manager.

    Raises:
        ConfigError: The object is none of these, or its framework's version works in another way.
    """
    for base in type(thing).__mro__:
        for package, module in _ADAPTERS.items():
            if base.__module__ == package or base.__module__.startswith(package + "."):
                found: Attachment = import_module(f"pfo_fs.integrations.{module}").attach(thing, shared_dir, **options)
                return found
    raise ConfigError(
        f"attach cannot follow a {type(thing).__module__}.{type(thing).__qualname__}; it takes a schedule of "
        "torch.distributed.pipelining, a pipeline engine of DeepSpeed, or a trainer of torchtitan. For Megatron-Core "
        "see pfo_fs.integrations.megatron, for others docs/frameworks/your-own.md"
    )
