"""Pages that are made from the code: `docs/commands.md`, `docs/doctor.md` and man pages (`tools/make_commands`)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import typer

from pfo_fs.cli import app, daemon_app
from pfo_fs.doctor.lines import texts

EXIT_CODES = (
    ("0", "the command did what was asked"),
    ("1", "an error, or `doctor` and `schedule check` have found a problem; one line on standard error says which"),
    ("2", "wrong usage: an option or argument is missing, unknown, or does not go with another one"),
    (
        "3",
        "written, but no process follows it yet: `schedule set`, `target`, `straggler`; `off --wait`",
    ),
    ("130", "interrupted by Ctrl-C"),
)
_VALUES = {int: "integer", float: "number", Path: "path", bool: ""}
_RESULTS = {True: "ok", False: "no", None: "-"}
_NOT_LISTED = {"help", "install_completion", "show_completion"}


@dataclass(frozen=True)
class Parameter:
    """An argument or option: its names, the values it takes, its default (empty: none) and its help."""

    names: str
    values: str
    default: str
    text: str


@dataclass(frozen=True)
class CommandText:
    """A command: its full name, its help and its parameters."""

    name: str
    text: str
    parameters: list[Parameter]


def commands() -> list[CommandText]:
    """Returns all commands, `pfo-fs` and its subcommands first, `pfo-fs-daemon` last."""
    return [
        *_walk("pfo-fs", typer.main.get_command(app)),
        *_walk("pfo-fs-daemon", typer.main.get_command(daemon_app())),
    ]


def reference_markdown() -> str:
    """Returns the text of `docs/commands.md`."""
    lines = ["# Commands", "", "Generated from the code by `tools/make_commands`; do not edit.", ""]
    lines += [
        "`-h` shows the help of each command. `pfo-fs --install-completion` sets up completion in your shell.",
        "",
        "| exit code | meaning |",
        "| --- | --- |",
        *(f"| {code} | {meaning} |" for code, meaning in EXIT_CODES),
    ]
    for command in commands():
        lines += ["", f"## `{command.name}`", "", command.text]
        if command.parameters:
            lines += ["", "| argument or option | values | default | meaning |", "| --- | --- | --- | --- |"]
            lines += [
                f"| {_code(p.names)} | {_cell(p.values)} | {_code(p.default)} | {_cell(p.text)} |"
                for p in command.parameters
            ]
    return "\n".join(lines) + "\n"


def doctor_markdown() -> str:
    """Returns the text of `docs/doctor.md`."""
    parts = [texts()["page"]]
    for title, part in (("The shared directory", "directory"), ("The node", "node")):
        parts += [f"## {title}\n", *(_section(name, about) for name, about in texts()[part].items())]
    return "\n".join(parts)


def _section(name: str, about: dict[str, Any]) -> str:
    rows = [
        f"| {_RESULTS[one['ok']]} | {_cell(one['meaning'])} | {_cell(one.get('todo', '')) or 'nothing'} |"
        for one in about["outcomes"].values()
    ]
    head = f"### {name}\n\nWhat is looked at: {about['looks_at']}.\n\n| result | what it means | what to do |"
    return "\n".join([head, "| --- | --- | --- |", *rows, ""])


def man_pages() -> dict[str, str]:
    """Returns the name and the text (roff) of each man page."""
    pages = {}
    for command in commands():
        name = command.name.replace(" ", "-")
        first, _, rest = command.text.partition("\n")
        lines = [f'.TH "{name.upper()}" 1', ".SH NAME", f"{_roff(name)} \\- {_roff(first)}"]
        lines += [".SH SYNOPSIS", f".B {_roff(command.name)}", "[options]"]
        if rest.strip():
            lines += [".SH DESCRIPTION", _roff(rest.strip())]
        if command.parameters:
            lines.append(".SH OPTIONS")
        for parameter in command.parameters:
            default = f" Default: {parameter.default}." if parameter.default else ""
            lines += [".TP", f".B {_roff(parameter.names)} {_roff(parameter.values)}", _roff(parameter.text + default)]
        lines.append(".SH EXIT STATUS")
        for code, meaning in EXIT_CODES:
            lines += [".TP", f".B {code}", _roff(meaning.replace("`", ""))]
        pages[f"{name}.1"] = "\n".join(lines) + "\n"
    return pages


def _walk(name: str, command: Any) -> Iterator[CommandText]:
    shown = [p for p in command.params if p.name not in _NOT_LISTED and not getattr(p, "hidden", False)]
    yield CommandText(name, _plain(command.help or ""), [_parameter(parameter) for parameter in shown])
    for below in sorted(getattr(command, "commands", {})):
        yield from _walk(f"{name} {below}", command.commands[below])


def _parameter(parameter: Any) -> Parameter:
    is_option = parameter.param_type_name == "option"
    names = ", ".join([*parameter.opts, *parameter.secondary_opts]) if is_option else (parameter.name or "").upper()
    kind = parameter.type_descriptor.annotation
    values = " or ".join(get_args(kind)) if get_origin(kind) is Literal else _VALUES.get(kind, "text")
    if parameter.multiple:
        values += ", several times"
    default = parameter.default
    if callable(default) or default in (None, False) or getattr(parameter, "required", False):
        default = ""
    variable = f" Also: {parameter.envvar} in the environment." if parameter.envvar else ""
    return Parameter(names, values, str(default), _plain(parameter.help or "") + variable)


def _plain(text: str) -> str:
    return "\n".join(line.strip() for line in text.replace("\f", "").splitlines()).strip()


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _code(text: str) -> str:
    return f"`{_cell(text)}`" if text else ""


def _roff(text: str) -> str:
    escaped = text.replace("\\", "\\e").replace("-", "\\-")
    return "\n".join("\\&" + line if line.startswith((".", "'")) else line for line in escaped.splitlines())
