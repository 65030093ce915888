"""`site.yaml` in the shared directory: what the site allows jobs to do.

coordination: daemon-only   # a job never schedules itself; without a daemon it runs at default clocks
"""

from dataclasses import dataclass, replace
from typing import Literal, TypeAlias, get_args

import yaml

from pfo_fs.errors import StoreError, StoreUnavailable
from pfo_fs.schedule_yaml.nodes import compose, describe_node, pairs_of
from pfo_fs.schedule_yaml.parse import unknown_key
from pfo_fs.schedule_yaml.problems import ScheduleProblems, one_problem
from pfo_fs.store import SharedDirectory, layout

Coordination: TypeAlias = Literal["auto", "daemon-only"]


@dataclass(frozen=True)
class SitePolicy:
    """What the site allows.

    Attributes:
        coordination: `auto`: a job without a daemon is scheduled by its own rank 0, unless it requests a daemon.
            `daemon-only`: only a daemon schedules; a job that no daemon claims keeps its default clocks.
        problem: What is wrong with the file, and in which line; empty if nothing is.
    """

    coordination: Coordination = "auto"
    problem: str = ""

    @property
    def daemon_only(self) -> bool:
        """Whether a job may not schedule itself."""
        return self.coordination == "daemon-only"

    @property
    def warning(self) -> str:
        """Text for the log about what is wrong with the file; empty if nothing is."""
        in_force = f"Until it is mended, `coordination: {self.coordination}` is in force"
        return f"{self.problem}. {in_force}" if self.problem else ""


_DEFAULT = SitePolicy()


def read_site_policy(shared: SharedDirectory, last: SitePolicy = _DEFAULT) -> SitePolicy:
    """Reads `site.yaml`; without that file everything is allowed.

    A file that cannot be read or is not valid changes nothing: what the process has read before stays in force.
    `problem` says what is wrong, and the mended file counts when it is read next.
    """
    try:
        content = shared.files.read(layout.SITE, layout.SITE_LIMIT)
        return _DEFAULT if content is None else parse_site_policy(content)
    except StoreUnavailable:
        raise
    except StoreError as error:
        problem = f"site.yaml cannot be read: {error.args[-1]}"
    except ScheduleProblems as error:
        problem = f"site.yaml is not valid: {error}"
    return replace(last, problem=problem)


def parse_site_policy(content: bytes) -> SitePolicy:
    """Parses the content of a `site.yaml`.

    Raises:
        ScheduleProblems: The content is not valid. No other exception is raised, whatever `content` is.
    """
    root = compose(content)
    policy: SitePolicy | None = None
    if root is None or (isinstance(root, yaml.ScalarNode) and not root.value):
        return _DEFAULT
    if not isinstance(root, yaml.MappingNode):
        raise one_problem(1, f"expected `coordination: daemon-only`, got {describe_node(root)}")
    for key, line, value in pairs_of(root):
        if key != "coordination":
            raise one_problem(line, unknown_key(key, ["coordination"]))
        if policy is not None:
            raise one_problem(line, f"the key {key!r} is given twice")
        if not isinstance(value, yaml.ScalarNode) or value.value not in get_args(Coordination):
            choices = " or ".join(get_args(Coordination))
            raise one_problem(line, f"coordination is {describe_node(value)}; it can be {choices}")
        policy = SitePolicy(value.value)
    return policy or _DEFAULT
