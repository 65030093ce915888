"""The only reader of YAML in this package: turns untrusted bytes into a tree of nodes with line numbers, or a problem.

It constructs no objects: `schedule.yaml` and `site.yaml` are read from the tree, whose values are text. PyYAML's pure
loader composes nodes only. What could use up memory or time is refused while events arrive, before a node is built
from them: aliases (the "billion laughs" attack), anchors, tags, depth, too many nodes, further documents.
"""

from collections.abc import Iterator

import yaml

from pfo_fs.schedule_yaml.problems import ScheduleProblems, one_problem

MAX_YAML_BYTES = 256 * 1024
MAX_DEPTH = 8
"""`stages: 0: - [...]` is 4 deep."""
MAX_NODES = 50_000
"""A clock for each of two instructions of 4,096 ranks are 24,000 nodes. The loader makes some 40,000 in a second."""


class _Loader(yaml.SafeLoader):
    """Composes plain trees: without aliases, anchors, tags and halves of characters, and of limited depth."""

    depth = nodes = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        line = event.start_mark.line + 1
        if isinstance(event, yaml.AliasEvent):
            raise one_problem(line, f"aliases (*{event.anchor}) are not used here; write the value itself")
        if event.anchor is not None:
            raise one_problem(line, f"anchors (&{event.anchor}) are not used here; use a range of stages such as `0-3`")
        if event.tag is not None:
            raise one_problem(line, f"tags ({event.tag[:60]!r}) are not used here")
        if isinstance(event, yaml.ScalarEvent) and any("\ud800" <= character <= "\udfff" for character in event.value):
            raise one_problem(line, "an escape such as \\ud800 is only half of a character")
        if self.depth >= MAX_DEPTH:
            raise one_problem(line, f"nested more than {MAX_DEPTH} levels deep; half of that is enough")
        self.nodes += 1
        if self.nodes > MAX_NODES:
            raise one_problem(line, f"more than {MAX_NODES:,} keys and values; write ranges such as `0-3`, or `x7`")
        self.depth += 1
        try:
            return super().compose_node(parent, index)
        finally:
            self.depth -= 1


def compose(text: bytes | str) -> yaml.Node | None:
    """Returns the root node of a YAML document, or None if it has nothing but comments.

    Raises:
        ScheduleProblems: The text is too large, not UTF-8, not YAML, or YAML with something that is not used here. No
            other exception is raised, whatever `text` is.
    """
    decoded, line = _decode(text), 1
    try:
        loader = _Loader(decoded)
        try:
            return loader.get_single_node()
        finally:
            line = loader.line + 1
            loader.dispose()
    except ScheduleProblems:
        raise
    except yaml.reader.ReaderError as error:
        at = decoded.count("\n", 0, error.position) + 1
        raise one_problem(at, f"a character that YAML does not allow (#x{error.character:04x})") from None
    except yaml.MarkedYAMLError as error:
        raise _syntax_problem(error) from None
    except yaml.YAMLError as error:
        raise one_problem(line, f"is not YAML: {error}") from None
    except Exception as error:  # a fault of PyYAML: for example, it passes a number to chr() unchecked
        is_escape = isinstance(error, (ValueError, OverflowError))
        what = "an escape such as \\UFFFFFFFF is not the code of a character" if is_escape else type(error).__name__
        raise one_problem(line, f"is not YAML: {what}") from error


def _decode(text: bytes | str) -> str:
    size = len(text) if isinstance(text, bytes) else len(text.encode("utf-8", "surrogatepass"))
    if size > MAX_YAML_BYTES:
        raise one_problem(1, f"the file has {size:,} bytes; at most {MAX_YAML_BYTES:,} are allowed")
    if isinstance(text, bytes):
        try:
            text = text.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            line = error.object.count(b"\n", 0, error.start) + 1
            wrong = error.object[error.start]
            raise one_problem(line, f"byte 0x{wrong:02x} is not UTF-8; save the file as UTF-8") from None
    at = text.find("\0")
    if at >= 0:
        raise one_problem(text.count("\n", 0, at) + 1, "a NUL byte: the file is binary or damaged")
    return text


def _syntax_problem(error: yaml.MarkedYAMLError) -> ScheduleProblems:
    mark = error.problem_mark or error.context_mark
    line = mark.line + 1 if mark else 1
    if error.problem and "another document" in error.problem:
        return one_problem(line, "a second document begins here (`---`); the file is one document")
    reason = f"is not YAML: {error.problem or error}"
    if error.context:
        start = f" that begins in line {error.context_mark.line + 1}" if error.context_mark else ""
        reason += f" ({error.context}{start})"
    if error.problem and "'\\t'" in error.problem:
        reason += "; indent with spaces, not tabs"
    return one_problem(line, reason)


def line_of(node: yaml.Node) -> int:
    """Returns the 1-based line on which a node begins."""
    return int(node.start_mark.line) + 1


def pairs_of(node: yaml.MappingNode) -> Iterator[tuple[str | None, int, yaml.Node]]:
    """Yields (key as typed, its 1-based line, value); the key is None if it is not a scalar."""
    for key, value in node.value:
        yield (key.value if isinstance(key, yaml.ScalarNode) else None), line_of(key), value


def describe_node(node: yaml.Node) -> str:
    """Returns what a node is, in words for a message."""
    if isinstance(node, yaml.MappingNode):
        return "a mapping"
    if isinstance(node, yaml.SequenceNode):
        return f"a list of {len(node.value)}"
    return shorten(str(node.value)) if node.value else "nothing"


def shorten(text: str) -> str:
    """Returns a text for a message, in quotation marks, with at most 40 characters."""
    return repr(text if len(text) <= 40 else text[:37] + "...")
