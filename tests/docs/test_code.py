"""Every block of code in the documents is run, checked, or says why not; and every page is in the site's navigation."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.docs.documents import DOCUMENTS, ROOT, Block, blocks_of
from tests.docs.site.code import UnknownBlockError, everything, fate, fates


def test_every_block_has_a_fate() -> None:
    counted = fates(everything())
    assert counted.keys() == {"run", "checked", "shown", "not run"}
    assert counted["run"] > counted["not run"]


def test_no_fence_is_overlooked() -> None:
    for document in DOCUMENTS:
        fences = [line for line in document.read_text().splitlines() if line.lstrip().startswith("```")]
        indented = [line for line in fences if line.startswith(" ")]
        assert len(fences) - len(indented) == 2 * len(blocks_of(document)), document


def test_a_block_without_a_language_is_refused() -> None:
    with pytest.raises(UnknownBlockError, match=r"README\.md-3: name its language"):
        fate(Block(ROOT / "README.md", "", "what is this", 3))


def test_what_does_not_parse_is_refused() -> None:
    with pytest.raises(ValueError, match="Expecting"):
        fate(Block(ROOT / "README.md", "json", "{", 1))
    with pytest.raises(SyntaxError):
        fate(Block(ROOT / "README.md", "python", "if", 1, "takes long"))


def pages_of(entry: Any) -> Iterator[str]:
    """The paths in a part of the navigation."""
    if isinstance(entry, str):
        yield entry
    else:
        for inner in entry.values() if isinstance(entry, dict) else entry:
            yield from pages_of(inner)


def test_every_page_is_in_the_navigation() -> None:
    navigation = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]["nav"]
    written = {path.relative_to(ROOT / "docs").as_posix() for path in Path(ROOT / "docs").rglob("*.md")}
    assert set(pages_of(navigation)) == written, "name each page in zensical.toml's nav"
