"""``ringline embed``: vectors of a file's lines."""

from __future__ import annotations

import base64
import json
import sys
from array import array
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO

import click

from services.cli.commands._connection import Connection
from services.cli.commands._lines import (
    Line,
    answers,
    asking,
    file_argument,
    given_options,
    name_of,
    pooling_options,
    read_lines,
    with_input,
)
from services.cli.commands._npy import NpyFile
from services.cli.commands._options import ClientCommand, addresses_option, connection_options

EXAMPLES = """\b
Examples:
  ringline embed texts.txt > vectors.jsonl
  ringline embed documents.jsonl --prompt-name document --format npy --output documents.npy
  echo "Who barks?" | ringline embed - --model embedder --dimensions 256
"""


@click.command("embed", cls=ClientCommand, epilog=EXAMPLES)
@file_argument
@addresses_option
@connection_options
@click.option(
    "--format",
    "form",
    type=click.Choice(["json", "base64", "npy"]),
    default="json",
    show_default=True,
    help="json: a line for each input, with its vector as numbers; base64: with its 32-bit floats (little-endian) in "
    "base64; npy: one array of numpy, [inputs, dimensions].",
)
@click.option("--output", type=click.Path(dir_okay=False), help="File to write. Default: standard output.")
@click.option("--dimensions", type=int, help="Numbers of a vector: the leading ones. Default: all.")
@click.option("--normalize/--no-normalize", default=None, help="Scale vectors to a length of 1. Default: as the model.")
@click.option(
    "--prompt-name",
    help="Which of the model's prompts is put before each text, such as query. `ringline status` names them.",
)
@pooling_options
def embed(
    file: BinaryIO,
    as_json: bool | None,
    concurrency: int,
    address: str,
    connection: Connection,
    form: str,
    output: str | None,
    **flags: Any,
) -> None:
    """Make a vector of each line of FILE."""
    if form == "npy" and output is None:
        raise click.UsageError("--format npy needs --output: the number of vectors is known, and written, at the end.")
    options = given_options(flags)
    with ExitStack() as stack:
        client, shown = stack.enter_context(asking(address, connection))
        npy = stack.enter_context(NpyFile(output)) if form == "npy" and output is not None else None
        target = sys.stdout if output is None or npy else stack.enter_context(Path(output).open("w", encoding="utf-8"))
        lines = read_lines(file, as_json)
        for batch, vectors in answers(
            lambda inputs: client.embed(inputs, **options), lines, name_of(file), concurrency
        ):
            if npy is not None:
                npy.add(vectors.values, vectors.dimensions)
            else:
                print(*map(_line, batch, vectors, [form] * len(batch)), sep="\n", file=target)
            shown.add(len(batch), vectors.usage.prompt_tokens)


embed.help = with_input(embed.help)


def _line(line: Line, vector: array[float], form: str) -> str:
    """A result as JSON. Numbers have as many digits as 32-bit floats need."""
    named = json.dumps(line.named, ensure_ascii=False).removesuffix("}")
    if form == "base64":
        value = json.dumps(base64.b64encode(_little_endian(vector)).decode())
    else:
        value = f"[{', '.join(f'{number:.9g}' for number in vector)}]"
    return f'{named}, "embedding": {value}}}'


def _little_endian(vector: array[float]) -> bytes:
    if sys.byteorder == "big":
        vector = vector[:]
        vector.byteswap()
    return vector.tobytes()
