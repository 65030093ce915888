"""`pfo_fs.attach`: one line for all frameworks with a pipeline that pfo-fs knows. It imports none of them."""

import os
from functools import partial
from importlib import import_module

from pfo_fs.errors import ConfigError
from pfo_fs.integrations.pipeline_marks import Attachment, PipelineAdapter

_ADAPTERS = {
    "torch.distributed.pipelining": ("torch_pipelining", "TorchPipeline"),
    "deepspeed": ("deepspeed", "DeepSpeedPipeline"),
    "torchtitan": ("torch_pipelining", "TorchtitanPipeline"),
    "megatron": ("megatron", "attach"),
}
"""An adapter's module and class (or function), by the package of the object's class or of one of its bases."""


def attach(thing: object, shared_dir: str | os.PathLike[str], **options: object) -> Attachment:
    """Makes training with a framework follow frequency schedules, until `close`; a collective call of all ranks.

        pfo = pfo_fs.attach(schedule, "/shared/pfo")

    Args:
        thing: What runs the pipeline: a schedule of `torch.distributed.pipelining`, a DeepSpeed engine, a torchtitan
            trainer, or a Megatron-Core model (one module, or the list of its chunks; give `num_microbatches=`, too).
        shared_dir: The directory that all ranks, the daemon and users share.
        options: Other arguments of `PFOFileOptimizer`. With torch's schedules and tensor parallelism also `mesh`, a
            `DeviceMesh` with a dimension `pp`. With `loads`, clocks do not come from a schedule but from the loads of
            each step, and all ranks of a pipeline get one clock (docs/load-clocks.md). For torch's schedules, `loads`
            may be a function from the arguments of a micro-batch's forward to its load, called when a step gets its
            inputs. Else it is True, and the program calls the holder's `give_loads` before each step.

    Returns:
        The optimizer's holder: `close()` takes everything off `thing` and resets the clocks; it is a context manager,
        too. `optimizer` is the `PFOFileOptimizer`. If `thing` cannot be followed, or anything else fails on a rank,
        there is one warning on each rank with the reason, and training goes on at default clocks.

    Raises:
        PfoError: With `strict=True`, in place of the warning; a ConfigError if `thing` cannot be followed.
    """
    first = thing[0] if isinstance(thing, list) and thing else thing
    for kind in type(first).__mro__:
        for package, (module, name) in _ADAPTERS.items():
            if f"{kind.__module__}.".startswith(f"{package}."):
                adapter = getattr(import_module(f"pfo_fs.integrations.{module}"), name)
                if name == "attach":  # its attachment has more methods
                    attachment: Attachment = adapter(thing, shared_dir, **options)
                    return attachment
                own = {"mesh": options.pop("mesh", None)} if name == "TorchPipeline" else {}
                return Attachment.make(partial(adapter, thing, **own), shared_dir, options)

    def refuse() -> PipelineAdapter:
        kind = first if isinstance(first, type) else type(first)
        raise ConfigError(
            f"attach() {'takes an object, not the class' if kind is first else 'does not know'} "
            f"{kind.__module__}.{kind.__qualname__}: give it a schedule of torch.distributed.pipelining, a DeepSpeed "
            "engine, a torchtitan trainer or a Megatron-Core model; docs/frameworks.md shows what another framework "
            "needs. Without a pipeline: LoadClocks where ranks get unequal work, power_limit_loop for other training"
        )

    return Attachment.make(refuse, shared_dir, options)
