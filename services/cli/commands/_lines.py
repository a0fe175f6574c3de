"""Files with an input on each line, for ``ringline embed`` and its siblings: sent in batches, some at once."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from inspect import cleandoc
from typing import Any, BinaryIO, TypeVar, cast

import click
import ringline
from ringline.in_order import in_order

from services.cli.commands._connection import Connection
from services.cli.commands._options import PATIENCE, server_errors, usage_errors

CONCURRENCY = 4
"""Batches under way at once, unless --concurrency says more."""
_MOST_LINES, _MOST_BYTES = 256, 1 << 20
"""Of a batch, which one message holds."""
_LONGEST_LINE = 64 << 20
_JSON_ENDINGS = (".jsonl", ".ndjson")
_PLACE = re.compile(r"(?:inputs|documents)\[(\d+)\]")
_REFRESH = 0.2
"""Seconds between two lines of progress."""
Function = TypeVar("Function", bound=Callable[..., Any])
Result = TypeVar("Result")
INPUT = """Each line of FILE ("-": standard input) is a text. With --jsonl, which a name that ends with .jsonl implies,
it is a JSON object with "text" or "token_ids", and an "id", if it has one, that comes back with its result."""


def with_input(text: str | None) -> str:
    """A command's help, and what a line is."""
    return f"{cleandoc(text or '')}\n\n{INPUT}"


@dataclass(frozen=True, slots=True)
class Line:
    """An input."""

    number: int
    """Of the line, from 1 on."""
    size: int
    """Bytes."""
    content: str | list[int]
    """A text, or token ids."""
    named: dict[str, Any] = field(default_factory=dict)
    """Its index among the inputs, and its id, if it has one: what its result begins with."""


class BadLineError(click.ClickException):
    """A line that cannot be used."""

    def __init__(self, name: str, number: int, problem: str) -> None:
        super().__init__(f"{name}:{number}: {problem}")


def file_argument(function: Function) -> Function:
    """Add FILE, --jsonl and --concurrency."""
    for option in (
        click.option(
            "--concurrency",
            type=click.IntRange(1, 64),
            default=CONCURRENCY,
            show_default=True,
            help=f"Batches under way at once, of at most {_MOST_LINES} lines and {_MOST_BYTES >> 20} MiB each.",
        ),
        click.option("--jsonl/--lines", "as_json", default=None, help="What a line is. Default: by FILE's name."),
        click.argument("file", type=click.File("rb")),
    ):
        function = option(function)
    return function


def read_lines(file: BinaryIO, as_json: bool | None) -> Iterator[Line]:
    """The inputs. ``as_json``: None: as the file's name says. Raises ``BadLineError``."""
    name = name_of(file)
    if as_json is None:
        as_json = name.endswith(_JSON_ENDINGS)
    number = 0
    while data := file.readline(_LONGEST_LINE + 1):
        number += 1
        try:
            if len(data) > _LONGEST_LINE:
                raise ValueError(f"longer than {_LONGEST_LINE >> 20} MiB: expected an input on each line")
            text = data.decode().removesuffix("\n").removesuffix("\r")
            named = {"index": number - 1}
            content: str | list[int] = text
            if as_json:
                content, found = _object(text)
                named |= found
            if not content:
                raise ValueError("empty: expected an input on each line")
        except UnicodeDecodeError as error:
            raise BadLineError(name, number, f"not UTF-8 at byte {error.start}: expected text") from None
        except (ValueError, RecursionError) as error:
            raise BadLineError(name, number, str(error)) from None
        yield Line(number, len(data), content, named)


def _object(text: str) -> tuple[str | list[int], dict[str, Any]]:
    """What a JSON object has as input, and its id. Raises ``ValueError``."""
    wanted = 'expected an object such as {"text": "A dog runs."}'
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ValueError(f"not JSON ({error}): {wanted}, or --lines for plain text") from None
    if not isinstance(found, dict):
        raise ValueError(f"{type(found).__name__} in place of an object: {wanted}")
    given = [name for name in ("text", "token_ids") if name in found]
    if len(given) != 1:
        raise ValueError(f'"text" and "token_ids" both: {wanted}' if given else f'no "text": {wanted}')
    content = found[given[0]]
    if given == ["text"] and not isinstance(content, str):
        raise ValueError(f'"text" is {type(content).__name__}: expected a text')
    if given == ["token_ids"] and not (isinstance(content, list) and all(type(each) is int for each in content)):
        raise ValueError('"token_ids" is no list of numbers: expected token ids')
    return content, {"id": found["id"]} if "id" in found else {}


def name_of(file: BinaryIO) -> str:
    """For messages."""
    return str(getattr(file, "name", "-")).replace("<stdin>", "-")


def answers(
    ask: Callable[[Sequence[str | list[int]]], Result], lines: Iterable[Line], name: str, concurrency: int
) -> Iterator[tuple[list[Line], Result]]:
    """Each batch of ``lines`` with what ``ask`` says of it, in order. Raises ``BadLineError`` for a refused line."""

    def asked(batch: list[Line]) -> tuple[list[Line], Result]:
        try:
            return batch, ask([line.content for line in batch])
        except ringline.InvalidRequest as error:
            found = _PLACE.match(error.field or "")
            if found is None:
                raise
            place = found[0]
            problem = str(error).removeprefix(place).removeprefix(": ").replace("(truncate cuts", "(--truncate cuts")
            raise BadLineError(name, batch[int(found[1])].number, problem) from None

    return in_order(asked, _batches(lines), concurrency)


def _batches(lines: Iterable[Line]) -> Iterator[list[Line]]:
    batch: list[Line] = []
    size = 0
    for line in lines:
        if batch and (len(batch) == _MOST_LINES or size + line.size > _MOST_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(line)
        size += line.size
    if batch:
        yield batch


class Progress:
    """One line on the terminal that says how far a command is; none if the results go there, too."""

    def __init__(self, *, shown: bool) -> None:
        self._shown = shown
        self._begun = self._last = time.monotonic()
        self._inputs = self._tokens = 0

    def add(self, inputs: int, tokens: int) -> None:
        """Count what is done."""
        self._inputs += inputs
        self._tokens += tokens
        now = time.monotonic()
        if self._shown and now - self._last >= _REFRESH:
            self._last = now
            speed = self._inputs / (now - self._begun)
            click.echo(
                f"\r{self._inputs:,} inputs, {self._tokens:,} tokens, {speed:,.0f} inputs/s ", nl=False, err=True
            )

    def end(self) -> None:
        """Leave the line, with the final numbers."""
        if self._shown and self._inputs:
            self._last = 0.0
            self.add(0, 0)
            click.echo(err=True)


@contextmanager
def asking(address: str, connection: Connection) -> Iterator[tuple[ringline.Client, Progress]]:
    """A client, and progress on standard error if that is a terminal and standard output is none.

    A failed request is reported in one line, with exit code 1.
    """
    with usage_errors(connection):
        client = ringline.Client(address, patience=PATIENCE, **connection.for_client())
    shown = Progress(shown=sys.stderr.isatty() and not sys.stdout.isatty())
    with client, server_errors(address, connection):
        try:
            yield client, shown
        finally:
            shown.end()


def pooling_options(function: Function) -> Function:
    """Add the options that requests for vectors, scores and labels have in common."""
    for option in reversed(_POOLING_OPTIONS):
        function = option(function)
    return function


_POOLING_OPTIONS = (
    click.option("--model", help="Name of the model, or of an adapter. Default: of those served, the one for this."),
    click.option("--adapter", help="Name of one of the model's adapters. `ringline status` lists them."),
    click.option(
        "--truncate",
        type=click.Choice(["end", "start"]),
        help="What is cut off an input that is too long. Default: such an input is refused.",
    ),
    click.option(
        "--max-input-tokens", type=int, help="Most tokens of an input, special ones included. Default: the model's."
    ),
    click.option(
        "--add-special-tokens/--no-add-special-tokens",
        default=None,
        help="Add the tokenizer's special tokens to texts. Default: yes.",
    ),
    click.option("--priority", type=int, help="Requests with a lower number run first. Default: 0."),
    click.option("--timeout", type=float, help="Seconds after which a batch is given up."),
)


def given_options(flags: dict[str, Any]) -> Any:
    """The given flags as options of the client library."""
    return cast("Any", {name: value for name, value in flags.items() if value is not None})
