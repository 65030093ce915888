"""The shared directory. See `layout.py` for its paths and `fs.py` for the only calls that are made on it.

Every call on it may raise `StoreError` where the directory refuses, `StoreUnavailable` where it gives no answer, and
`RecordError` where a record is not valid. Docstrings name other errors, and what these mean or leave behind.
"""

from pfo_fs.store import layout
from pfo_fs.store.directory import SharedDirectory
from pfo_fs.store.file_reader import TEMP_PREFIX
from pfo_fs.store.file_systems import LOCAL_TYPES, NO_HARD_LINKS, Mount, is_local, mount_of
from pfo_fs.store.fs import Files
from pfo_fs.store.job_folder import JobFolder
from pfo_fs.store.off_switch import OffSwitch, SwitchedOff
from pfo_fs.store.presence import Presence
from pfo_fs.store.records import Header, RecordFolder, decode, encode
from pfo_fs.store.watch import Watcher
from pfo_fs.store.zeus_dump import load_dump, save_dump

__all__ = [
    "LOCAL_TYPES",
    "NO_HARD_LINKS",
    "TEMP_PREFIX",
    "Files",
    "Header",
    "JobFolder",
    "Mount",
    "OffSwitch",
    "Presence",
    "RecordFolder",
    "SharedDirectory",
    "SwitchedOff",
    "Watcher",
    "decode",
    "encode",
    "is_local",
    "layout",
    "load_dump",
    "mount_of",
    "save_dump",
]
