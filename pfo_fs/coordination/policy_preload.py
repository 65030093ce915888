"""Imports for the server that forks the processes of policies: in memory once for all jobs; a job adds some 20 MB.

Only that server may import this module, which sets the environment, and excludes all present objects from garbage
collection, because that would copy them for each job.
"""

import gc
import os
from contextlib import suppress
from importlib import import_module

# Before numpy is loaded: threads of its libraries would not outlive a fork, and one processor for a job is enough.
os.environ.update(dict.fromkeys(("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"), "1"))
for name in (
    *("numpy", "numpy.random", "pandas", "highspy"),
    *("pfo_fs.autotune.pareto_scheduler", "pfo_fs.autotune.instruction_profiler", "pfo_fs.coordination.remote_policy"),
):
    with suppress(ImportError):
        import_module(name)
gc.collect()
gc.freeze()
