"""``ringline rerank``: a file's lines in the order in which they match a query."""

from __future__ import annotations

import json
from collections.abc import Sequence
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
  ringline rerank "Who barks?" documents.txt --top-n 5
  grep -ri bark notes | ringline rerank "Who barks at night?" - --json
"""


@click.command("rerank", cls=ClientCommand, epilog=EXAMPLES)
@click.argument("query")
@file_argument
@addresses_option
@connection_options
@click.option("--top-n", type=click.IntRange(min=1), help="Show so many lines. Default: all.")
@click.option("--json", "json_out", is_flag=True, help="Print JSON objects with index, id, score and text.")
@click.option("--instruction", help="What a match means, for models whose template shows it.")
@click.option(
    "--activation/--no-activation", default=None, help="Apply the head's activation, such as sigmoid. Default: yes."
)
@pooling_options
def rerank(
    query: str,
    file: BinaryIO,
    as_json: bool | None,
    concurrency: int,
    address: str,
    connection: Connection,
    top_n: int | None,
    json_out: bool,
    **flags: Any,
) -> None:
    """Print the lines of FILE that match QUERY, the best first, each behind its score.

    A reranker reads QUERY and a line together; of an embedding model, vectors are compared by their cosine.
    """
    options = given_options(flags)
    scored: list[tuple[float, Line]] = []
    with asking(address, connection) as (client, shown):
        lines = read_lines(file, as_json)

        def ask(documents: Sequence[str | list[int]]) -> ringline.Scores:
            return client.score(query, documents, **options)

        for batch, scores in answers(ask, lines, name_of(file), concurrency):
            scored += zip(scores, batch, strict=True)
            shown.add(len(batch), scores.usage.prompt_tokens)
    for score, line in sorted(scored, key=lambda pair: -pair[0])[:top_n]:
        click.echo(_json(score, line) if json_out else f"{score:.6f}\t{line.content}")


rerank.help = with_input(rerank.help)


def _json(score: float, line: Line) -> str:
    key = "text" if isinstance(line.content, str) else "token_ids"
    return json.dumps({**line.named, "score": float(f"{score:.9g}"), key: line.content}, ensure_ascii=False)
