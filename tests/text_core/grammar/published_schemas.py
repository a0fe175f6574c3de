"""How many published schemas are accepted, and how many of their instances: ``python -m
tests.text_core.grammar.published_schemas FOLDER``.

FOLDER holds JSONSchemaBench's schemas (github.com/guidance-ai/jsonschemabench) or MaskBench's, which have instances.
Files are taken in the order of the hashes of what they hold, so that the first 300 are the same 300 for everyone.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import click
from llguidance import LLMatcher, LLTokenizer

from text_core.grammar.constraints import ConstraintError
from text_core.grammar.json_schema import checked_schema


class Tally:
    """What became of schemas and their instances."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.refusals: Counter[str] = Counter()
        self.wrong: list[str] = []
        """Invalid instances that were accepted, with their files."""
        self._tokenizer = LLTokenizer("byte")

    def add(self, name: str, content: bytes) -> None:
        document = json.loads(content)
        has_instances = isinstance(document, dict) and {"schema", "tests"} <= document.keys()
        schema = json.dumps(document["schema"]) if has_instances else content.decode()
        self.counts["schemas"] += 1
        try:
            grammar = f"start: %json {checked_schema(schema)}"
        except ConstraintError as error:
            self.refusals[re.sub(r"^/\S*: |\d+", "", error.problem)[:100]] += 1
            return
        matcher = LLMatcher(self._tokenizer, grammar, log_level=0)
        if matcher.is_error():  # the engine's refusal, as it compiles
            self.refusals[matcher.get_error().partition("\n")[0][:100]] += 1
            return
        self.counts["accepted"] += 1
        for instance in document["tests"] if has_instances else ():
            self._try(name, grammar, instance)

    def _try(self, name: str, grammar: str, instance: dict[str, Any]) -> None:
        matcher = LLMatcher(self._tokenizer, grammar, log_level=0)  # a new one: a full lexer would reject the next, too
        tokens = self._tokenizer.tokenize_str(json.dumps(instance["data"], ensure_ascii=False))
        fits = matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()
        kind = "valid" if instance["valid"] else "invalid"
        self.counts[kind] += 1
        self.counts[f"{kind} accepted"] += fits
        if fits and not instance["valid"]:
            self.wrong.append(f"{name}: {json.dumps(instance['data'])[:200]}")


@click.command(help=__doc__)
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--sample", type=int, help="Only so many schemas, the first by the hashes of their files.")
def main(folder: Path, sample: int | None) -> None:
    contents = {path: path.read_bytes() for path in folder.rglob("*.json")}
    chosen = sorted(contents, key=lambda path: hashlib.sha256(contents[path]).digest())[:sample]
    tally = Tally()
    with click.progressbar(chosen, label="schemas", file=sys.stderr) as progress:
        for path in progress:
            tally.add(path.name, contents[path])
    for what, count in tally.counts.items():
        click.echo(f"{count:7} {what}")
    for why, count in tally.refusals.most_common(20):
        click.echo(f"{count:7} refused: {why}")
    for line in tally.wrong:
        click.echo(f"WRONG {line}")
    sys.exit(1 if tally.wrong else 0)


if __name__ == "__main__":
    main()
