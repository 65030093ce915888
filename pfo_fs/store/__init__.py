"""The shared directory. See `directory.py` for its layout and `fs.py` for the only calls that are made on it."""

from pfo_fs.store.directory import JobFolder, SharedDirectory
from pfo_fs.store.dump import load_prof, load_ranks, load_sched, save_prof, save_ranks, save_sched
from pfo_fs.store.fs import Files
from pfo_fs.store.mounts import filesystem_type, is_local
from pfo_fs.store.watch import Watcher

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
