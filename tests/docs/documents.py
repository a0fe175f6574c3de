"""What the documents hold that can be tried: their code blocks, their inline code and their links."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = tuple(
    sorted(
        [
            ROOT / "README.md",
            ROOT / "CHANGELOG.md",
            ROOT / "CONTRIBUTING.md",
            ROOT / "SECURITY.md",
            ROOT / "benchmarks" / "README.md",
            ROOT / "checkpoints" / "tiny" / "README.md",
            ROOT / "clients" / "python" / "README.md",
            ROOT / "deploy" / "helm" / "ringline" / "README.md",
            ROOT / "engine_core" / "README.md",
            ROOT / "engine_core" / "kernels" / "README.md",
            ROOT / "engine_core" / "models" / "README.md",
            *(ROOT / "docs").rglob("*.md"),
        ]
    )
)

_FENCE = re.compile(
    r"^(?:<!-- not run: (?P<reason>[^\n]+?) -->\n)?```(?P<language>\w*)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL
)
_CONTINUED = re.compile(r"\s*\\\n\s*")
_INLINE = re.compile(r"`([^`\n]+)`")
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
_COMMENT = re.compile(r"(?:^|\s+)# .*$")


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced piece of code."""

    document: Path
    language: str
    code: str
    number: int
    """Among the document's blocks, from 1."""
    reason: str | None = None
    """Why it is not run, if the comment before it says so: ``<!-- not run: needs a cluster -->``."""

    def __str__(self) -> str:
        return f"{self.document.relative_to(ROOT)}-{self.number}"


def blocks_of(document: Path) -> list[Block]:
    """Every block of a document."""
    found = enumerate(_FENCE.finditer(document.read_text()), 1)
    return [Block(document, match["language"], match["code"], number, match["reason"]) for number, match in found]


def is_walk(document: Path) -> bool:
    """Whether a document's blocks are run one after the other, by ``make docs`` (``tests.docs.site.walks``)."""
    return document.is_relative_to(ROOT / "docs") and document.parent.name in ("start", "tutorials")


def blocks(language: str) -> list[Block]:
    """Every block of a language that is to be run by itself."""
    return [
        block
        for document in DOCUMENTS
        if not is_walk(document)
        for block in blocks_of(document)
        if block.language == language and block.reason is None
    ]


def command_lines() -> list[str]:
    """The lines of all blocks that are for a shell. One that is continued is one line."""
    return [line for block in blocks("bash") for line in lines_of_shell(block)]


def lines_of_shell(block: Block) -> list[str]:
    """A block's command lines, without comments."""
    lines = _CONTINUED.sub(" ", block.code).splitlines()
    return [without for line in lines if (without := _COMMENT.sub("", line).strip())]


def inline_code() -> Iterator[tuple[Path, str]]:
    """Everything between single backticks, with its document."""
    for document in DOCUMENTS:
        for match in _INLINE.finditer(_FENCE.sub("", document.read_text())):
            yield document, match[1]


def links(document: Path) -> list[str]:
    """The targets of links."""
    return [match[1] for match in _LINK.finditer(_FENCE.sub("", document.read_text()))]


def anchors(document: Path) -> set[str]:
    """The names under which a document's headings can be linked to, made as the usual renderers do."""
    headings = _HEADING.findall(_FENCE.sub("", document.read_text()))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@dataclass(frozen=True, slots=True)
class Generated:
    """A part of a page that a program writes, between two comments."""

    page: Path
    begin: str
    end: str
    make: Callable[[], str]

    def written(self) -> str:
        """As the page has it."""
        found = re.search(f"{re.escape(self.begin)}(.*?){re.escape(self.end)}", self.page.read_text(), re.DOTALL)
        assert found is not None, f"{self.page} has no place for what is written there"
        return found[1]

    def write(self) -> None:
        """Put it into its place."""
        self.page.write_text(self.page.read_text().replace(f"{self.begin}{self.written()}", self.begin + self.make()))
