"""Profiles that jobs leave for later jobs of their kind: `profiles/<key>/<job_id>.csv`."""

from __future__ import annotations

import json
from dataclasses import dataclass

from pfo_fs.errors import RecordError, StoreError
from pfo_fs.models import is_safe_job_id
from pfo_fs.store import layout
from pfo_fs.store.fs import Files

_MOST_PROFILES = 16
"""Of a kind of jobs, the newest 16 profiles are read: one is used."""
_MOST_KEYS = 10_000
"""A folder with more kinds of jobs was filled on purpose."""


@dataclass
class ProfileFiles:
    """One job's view of the profiles of all jobs."""

    files: Files
    job_id: str

    def path(self, key: str) -> str:
        """Returns the path of this job's profile, below the shared directory."""
        return layout.profile(key, self.job_id)

    def write(self, key: str, csv: str, about: str) -> None:
        """Publishes what this job has measured.

        Args:
            key: A plain name, the same for all jobs that can use this profile.
            about: What the key stands for, as JSON.
        """
        for folder in (layout.PROFILES, f"{layout.PROFILES}/{key}"):
            self.files.make_folder(folder)
        self.files.claim(layout.profile_about(key), about.encode())
        self.files.publish(self.path(key), csv.encode())

    def read_own(self, key: str) -> str:
        """Returns the profile that this job wrote last; empty if none."""
        try:
            return (self.files.read(self.path(key), layout.PROFILE_LIMIT) or b"").decode()
        except (StoreError, UnicodeDecodeError):
            return ""

    def read_others(self, key: str) -> dict[str, str]:
        """Returns the profiles of the latest jobs with this key, by job id, except those too large or not text."""
        found: dict[str, str] = {}
        for name in reversed(self.files.names(f"{layout.PROFILES}/{key}")):
            if len(found) == _MOST_PROFILES:
                break
            job_id = name.removesuffix(".csv")
            if name.endswith(".csv") and job_id != self.job_id and is_safe_job_id(job_id):
                try:
                    data = self.files.read(f"{layout.PROFILES}/{key}/{name}", layout.PROFILE_LIMIT)
                    found[job_id] = (data or b"").decode()
                except (StoreError, UnicodeDecodeError):
                    continue
        return found

    def all_keys(self) -> list[str]:
        """Returns the keys of all profiles, in no order; at most 10,000."""
        return self.files.names(layout.PROFILES)[:_MOST_KEYS]

    def read_about(self, key: str) -> dict[str, object]:
        """Returns what a key stands for; empty if its file is missing or cannot be read."""
        try:
            about = json.loads(self.files.read(layout.profile_about(key), layout.ABOUT_LIMIT) or b"{}")
        except (StoreError, ValueError, RecursionError):
            return {}
        return about if isinstance(about, dict) else {}

    def find(self, path: str = "") -> str | None:
        """Returns this job's profile; None if there is none.

        Args:
            path: The profile's path according to `model.json`; empty: the folder of every key is searched.

        Raises:
            RecordError: `path` is not the path of a profile, or the file is not text.
            StoreError: The file cannot be read.
        """
        if path:
            parts = path.split("/")
            if len(parts) != 3 or parts[0] != layout.PROFILES or ".." in parts:
                raise RecordError(f"model.json: {path!r} is not the path of a profile below the shared directory")
            paths = [path]
        else:
            paths = [self.path(key) for key in self.all_keys()]
        for one in paths:
            data = self.files.read(one, layout.PROFILE_LIMIT)
            if data is not None:
                try:
                    return data.decode()
                except UnicodeDecodeError as error:
                    raise RecordError(f"{one}: is not text: {error}") from None
        return None
