"""Every block of code in the documents is run, checked, or says why not; and every page is in the site's navigation."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from tests.docs.documents import DOCUMENTS, ROOT, Block, blocks_of
from tests.docs.site.code import UnknownBlockError, everything, fate, fates
from tests.docs.site.llms import pages_of


def test_every_block_has_a_fate() -> None:
    counted = fates(everything())
    assert counted.keys() == {"run", "checked", "shown", "not run"}
    assert counted["run"] > counted["not run"]


def test_no_fence_is_overlooked() -> None:
    for document in DOCUMENTS:
        fences = [line for line in document.read_text().splitlines() if line.lstrip().startswith("```")]
        assert len(fences) == 2 * len(blocks_of(document)), document


def test_a_block_without_a_language_is_refused() -> None:
    with pytest.raises(UnknownBlockError, match=r"README\.md-3: name its language"):
        fate(Block(ROOT / "README.md", "", "what is this", 3))


def test_what_does_not_parse_is_refused() -> None:
    with pytest.raises(ValueError, match="Expecting"):
        fate(Block(ROOT / "README.md", "json", "{", 1))
    with pytest.raises(SyntaxError):
        fate(Block(ROOT / "README.md", "python", "if", 1, "takes long"))


def test_every_page_is_in_the_navigation() -> None:
    navigation = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]["nav"]
    written = {path.relative_to(ROOT / "docs").as_posix() for path in Path(ROOT / "docs").rglob("*.md")}
    assert {path for _, path in pages_of(navigation)} == written, "name each page in zensical.toml's nav"
