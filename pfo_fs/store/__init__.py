"""The shared directory. See `layout.py` for its paths and `fs.py` for the only calls that are made on it."""

from pfo_fs.store.directory import SharedDirectory
from pfo_fs.store.fs import Files
from pfo_fs.store.job_folder import JobFolder
from pfo_fs.store.mounts import filesystem_type, is_local
from pfo_fs.store.watch import Watcher
from pfo_fs.store.zeus_dump import load_prof, load_ranks, load_sched, save_prof, save_ranks, save_sched

__all__ = [
    "Files",
    "JobFolder",
    "SharedDirectory",
    "Watcher",
    "filesystem_type",
    "is_local",
    "load_prof",
    "load_ranks",
    "load_sched",
    "save_prof",
    "save_ranks",
    "save_sched",
]
