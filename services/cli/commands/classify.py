"""``ringline classify``: labels of a file's lines."""

from __future__ import annotations

import json
from typing import Any, BinaryIO

import click
import ringline

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
from services.cli.commands._options import ClientCommand, addresses_option, connection_options

EXAMPLES = """\b
Examples:
  ringline classify reviews.txt
  ringline classify reviews.jsonl --json --no-activation
"""


@click.command("classify", cls=ClientCommand, epilog=EXAMPLES)
@file_argument
@addresses_option
@connection_options
@click.option(
    "--json", "json_out", is_flag=True, help="Print JSON objects with index, id, label and the scores of all."
)
@click.option(
    "--activation/--no-activation",
    default=None,
    help="Apply the head's activation: then scores are probabilities. Default: yes.",
)
@pooling_options
def classify(
    file: BinaryIO,
    as_json: bool | None,
    concurrency: int,
    address: str,
    connection: Connection,
    json_out: bool,
    **flags: Any,
) -> None:
    """Print the label of each line of FILE, with its score, before the line."""
    options = given_options(flags)
    with asking(address, connection) as (client, shown):
        lines = read_lines(file, as_json)
        for batch, found in answers(
            lambda inputs: client.classify(inputs, **options), lines, name_of(file), concurrency
        ):
            for line, one in zip(batch, found, strict=True):
                click.echo(_json(line, one) if json_out else f"{one.label}\t{one.value:.6f}\t{line.content}")
            shown.add(len(batch), found.usage.prompt_tokens)


classify.help = with_input(classify.help)


def _json(line: Line, one: ringline.Classification) -> str:
    scores = {label: float(f"{value:.9g}") for label, value in zip(one.labels, one.values, strict=True)}
    return json.dumps({**line.named, "label": one.label, "scores": scores}, ensure_ascii=False)
