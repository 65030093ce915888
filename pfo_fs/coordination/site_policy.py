"""`site.yaml` in the shared directory: what the site allows jobs to do.

coordination: daemon-only   # a job never schedules itself; without a daemon it runs at default clocks
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import yaml

from pfo_fs.errors import StoreError, StoreUnavailable
from pfo_fs.store import SharedDirectory

_ALLOWED = ("auto", "daemon-only")


@dataclass(frozen=True)
class SitePolicy:
    """What the site allows.

    Attributes:
        coordination: `auto`: a job without a daemon is scheduled by its own rank 0, unless it requests a daemon.
            `daemon-only`: only a daemon schedules; a job that no daemon claims keeps its default clocks.
        problem: Text for the log about what is wrong with the file; empty if nothing is.
    """

    coordination: Literal["auto", "daemon-only"] = "auto"
    problem: str = ""

    @property
    def daemon_only(self) -> bool:
        """Whether a job may not schedule itself."""
        return self.coordination == "daemon-only"


def read_site_policy(shared: SharedDirectory) -> SitePolicy:
    """Reads `site.yaml`; without that file everything is allowed.

    A file that cannot be read or is not valid counts as `daemon-only`: the site wanted a restriction, so the strictest
    one is used. `problem` then says what is wrong.

    Raises:
        StoreUnavailable: The file system does not answer.
    """
    try:
        content = shared.read_site()
    except StoreUnavailable:
        raise
    except StoreError as error:
        return SitePolicy("daemon-only", f"site.yaml cannot be read: {error.args[-1]}; no job schedules itself")
    return SitePolicy() if content is None else parse_site_policy(content)


def parse_site_policy(content: bytes) -> SitePolicy:
    """Parses the content of a `site.yaml`; `problem` says what is wrong with it."""
    try:
        # The loader builds plain values only. References are refused, because a few bytes can expand to gigabytes.
        if any(isinstance(token, (yaml.AliasToken, yaml.AnchorToken)) for token in yaml.scan(content)):
            return _invalid("it uses references (& and *)")
        found: Any = yaml.safe_load(content)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        return _invalid("it is not YAML" + (f", see line {mark.line + 1}" if mark else ""))
    if found is None:
        return SitePolicy()
    if not isinstance(found, dict):
        return _invalid("it must be a mapping such as `coordination: daemon-only`")
    unknown = sorted(str(key)[:40] for key in found if key != "coordination")
    if unknown:
        return _invalid(f"it has {unknown[0]!r}; only `coordination` is known")
    value = found.get("coordination", "auto")
    if value not in _ALLOWED:
        return _invalid(f"coordination is {str(value)[:40]!r}; it can be {' or '.join(_ALLOWED)}")
    return SitePolicy(value)


def _invalid(reason: str) -> SitePolicy:
    return SitePolicy("daemon-only", f"site.yaml is not valid: {reason}. Until it is valid, no job schedules itself")
