"""Links between the documents, and to what they speak of, lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.documents import DOCUMENTS, ROOT, anchors, inline_code, links

BASES = (".", "engine_core", "engine_core/kernels/cpu", "clients/python")
"""Where paths in running text begin, besides the document's own folder."""
MADE_BY_COMMANDS = {"authority/", "dist/", "site/", "results/", "results/offline.json"}
MODELS_OF_USERS = ("path/to/", "org/name/")
_PATH = re.compile(r"[\w.*-]+(/[\w.*-]+)*(/|/[\w*-]+\.\w+|/[\w-]+\*)")
_MODULE = re.compile(r"(benchmarks|engine_core|services|text_core)(\.\w+)+")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(document: Path) -> None:
    broken = []
    for link in links(document):
        if link.startswith("https://"):
            continue
        path, _, anchor = link.partition("#")
        target = (document.parent / path).resolve() if path else document
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


def test_paths_that_are_named_exist() -> None:
    missing = []
    for document, code in inline_code():
        if _PATH.fullmatch(code) and code not in MADE_BY_COMMANDS and not code.startswith(MODELS_OF_USERS):
            bases = (document.parent, *(ROOT / base for base in BASES))
            if not any(next(base.glob(code.rstrip("/")), None) for base in bases):
                missing.append(f"{document.name}: {code}")
    assert missing == []


def test_modules_that_are_named_exist() -> None:
    missing = []
    for document, code in inline_code():
        if _MODULE.fullmatch(code):
            path = ROOT / code.replace(".", "/")
            if not path.is_dir() and not path.with_suffix(".py").exists():
                missing.append(f"{document.name}: {code}")
    assert missing == []


def test_the_protocol_page_names_what_is_in_the_contract() -> None:
    contract = " ".join(path.read_text() for path in (ROOT / "protos" / "ringline").rglob("*.proto"))
    known = {*re.findall(r"\w+", contract), "MergeFrom"}  # the last is protobuf's own
    wrong = [
        name
        for document, code in inline_code()
        if document.name == "protocol.md" and "/" not in code
        for name in re.findall(r"\b[a-z]+(?:_[a-z]+)+\b|\b(?:[A-Z][a-z]+){2,}\b", code)
        if name not in known
    ]
    assert wrong == []
