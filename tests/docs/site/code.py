"""What becomes of each block of code in the documents: it is run, checked, or says why not.

- **run**: Python and TypeScript programs, and commands that ask a ring, by tests/docs; walks, by ``make docs``.
- **checked**: commands that would start or install something, as far as their options (tests/docs/test_commands.py);
  JSON, YAML and TOML, which have to parse.
- **shown**: ``text``: outputs and drawings.
- **not run**, with a reason, in a comment before the block; Python still has to compile.
"""

from __future__ import annotations

import ast
import json
import tomllib
from collections import Counter
from collections.abc import Iterable

import yaml

from tests.docs.documents import DOCUMENTS, Block, blocks_of, is_walk, lines_of_shell

SERVERS = {"serve", "engine", "processor", "detokenizer", "gateway", "demo", "certs", "token"}
PROGRAMS = {"python": "run", "ts": "run", "typescript": "run"}
PARSERS = {"json": json.loads, "toml": tomllib.loads, "yaml": lambda code: list(yaml.safe_load_all(code))}


class UnknownBlockError(Exception):
    """A block that is neither run, nor checked, nor marked."""


def fate(block: Block) -> str:
    """run, checked, shown or not run."""
    if block.language == "text":
        return "shown"
    if block.language in PARSERS:
        PARSERS[block.language](block.code)
        return "checked"
    if block.reason is not None:
        if block.language == "python":
            ast.parse(block.code)
        return "not run"
    if block.language in PROGRAMS:
        return PROGRAMS[block.language]
    if block.language == "bash":
        return "run" if is_walk(block.document) or any(map(asks_a_ring, lines_of_shell(block))) else "checked"
    raise UnknownBlockError(f"{block}: name its language, or say in a comment before it why it is not run")


def asks_a_ring(line: str) -> bool:
    """Whether the tests run a line, rather than read its options."""
    first, *rest = line.rpartition("|")[2].split()
    program = first.rpartition("/")[2]
    return program == "curl" or (program == "ringline" and rest[0] not in SERVERS and "--tls-" not in line)


def fates(blocks: Iterable[Block]) -> Counter[str]:
    return Counter(map(fate, blocks))


def everything() -> list[Block]:
    """Every block of every document."""
    return [block for document in DOCUMENTS for block in blocks_of(document)]
