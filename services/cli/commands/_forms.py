"""Flags for structured answers: their form, and tools that the model may call."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

Function = TypeVar("Function", bound=Any)
TOOLS_FILE = """\b
tools.json is a list such as
  [{"name": "add", "description": "Add numbers.", "parameters": {"type": "object",
    "properties": {"a": {"type": "number"}, "b": {"type": "number"}}, "required": ["a", "b"]}}]
"""
"""For the end of a command's help."""
_FORMS = ("json_schema", "json_object", "regex", "choice", "grammar")


def json_schema(text: str) -> str:
    """The schema: ``text`` itself, or the contents of the file it names."""
    return text if text.lstrip().startswith("{") or text.strip() in ("true", "false") else file_text(text)


def file_text(path: str) -> str:
    """The text of a file."""
    try:
        return Path(path).read_text()
    except OSError as error:
        raise click.BadParameter(f"cannot read {path!r}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise click.BadParameter(f"{path!r} is not text: expected UTF-8") from None


def tools(path: str) -> list[Mapping[str, Any]]:
    """The tools in a JSON file."""
    try:
        read = json.loads(file_text(path))
    except (ValueError, RecursionError) as error:
        raise click.BadParameter(f"{path!r} is not JSON: {error}") from None
    if not isinstance(read, list) or not all(isinstance(tool, dict) for tool in read):
        raise click.BadParameter(
            f'{path!r} is not a list of tools: expected such as [{{"name": "add", "parameters": {{"type": "object"}}}}]'
        )
    return read


_FORM_OPTIONS = (
    click.option(
        "--json-schema",
        type=json_schema,
        metavar="FILE|JSON",
        help="The answer is JSON that this schema accepts.",
    ),
    click.option("--json-object", is_flag=True, default=None, help="The answer is a JSON object."),
    click.option("--regex", help="The answer matches this regular expression as a whole."),
    click.option("--choice", multiple=True, metavar="TEXT", help="The answer is one of these. Repeat it."),
    click.option(
        "--grammar",
        type=file_text,
        metavar="FILE",
        help="The answer is a text of this grammar: Lark's notation, or GBNF.",
    ),
    click.option(
        "--any-whitespace/--no-any-whitespace",
        default=None,
        help="White space of JSON is where the model puts it. Default: one blank after each comma and colon.",
    ),
)
tools_option = click.option(
    "--tools", type=tools, metavar="FILE", help="Tools that the model may call: a JSON list, in OpenAI's form."
)


def form_options(function: Function) -> Function:
    """Add the flags of an answer's form."""
    for option in reversed(_FORM_OPTIONS):
        function = option(function)
    return function


def has_form(flags: Mapping[str, Any]) -> bool:
    """Whether the answer has a form."""
    return any(flags[name] not in (None, ()) for name in _FORMS)


def check_form(flags: Mapping[str, Any]) -> None:
    """Raise UsageError for two forms, and for ``--any-whitespace`` without JSON."""
    given = [f"--{name.replace('_', '-')}" for name in _FORMS if flags[name] not in (None, ())]
    if len(given) > 1:
        raise click.UsageError(f"{' and '.join(given)} exclude each other: an answer has one form.")
    if flags["any_whitespace"] is not None and given not in (["--json-schema"], ["--json-object"]):
        raise click.UsageError("--any-whitespace is for JSON: give --json-schema or --json-object.")
