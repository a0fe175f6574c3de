"""``llms.txt`` (llmstxt.org): the pages of the site with a sentence each, for programs; ``llms-full.txt``: all text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.docs.documents import ROOT

DOCS = ROOT / "docs"
LONGEST = 200
"""Characters of a page's sentence."""
_COMMENT = re.compile(r"<!--.*?-->\n?", re.DOTALL)
_LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")


def pages_of(entry: Any, title: str = "") -> Iterator[tuple[str, str]]:
    """The titles and paths in a part of the navigation."""
    if isinstance(entry, str):
        yield title, entry
    elif isinstance(entry, dict):
        for name, inner in entry.items():
            yield from pages_of(inner, name)
    else:
        for inner in entry:
            yield from pages_of(inner, title)


def sentence(text: str) -> str:
    """The first sentence of a page, in plain text."""
    for paragraph in _COMMENT.sub("", text).split("\n\n")[1:]:
        if re.match(r"[A-Za-z`*\[]", paragraph) and not paragraph.startswith("```"):
            plain = " ".join(_LINK.sub(r"\1", paragraph).replace("**", "").split())
            first = re.split(r"(?<=[.!?])\s", plain)[0].rstrip(":")
            return first if len(first) <= LONGEST else first[:LONGEST].rsplit(" ", 1)[0] + " …"
    return ""


def described(title: str, path: str) -> str:
    """A page's line."""
    told = sentence((DOCS / path).read_text())
    return f"- [{title}]({path}){f': {told}' if told else ''}"


def write(site: Path, project: dict[str, Any]) -> int:
    """Write both into a built site, and each page's Markdown beside its HTML; returns how many pages they name."""
    lines = [f"# {project['site_name']}", "", f"> {project['site_description']}", ""]
    whole = [*lines]
    count = 0
    for entry in project["nav"]:
        [(section, inner)] = entry.items()
        pages = list(pages_of(inner, section))
        if isinstance(inner, str):  # the home page has no section of its own
            lines += [sentence((DOCS / inner).read_text()), ""]
        else:
            lines += [f"## {section}", "", *(described(title, path) for title, path in pages), ""]
        for _, path in pages:
            text = (DOCS / path).read_text()
            whole += [f"<!-- {path} -->", "", _COMMENT.sub("", text).strip(), ""]
            (site / path).write_text(text)
            count += 1
    (site / "llms.txt").write_text("\n".join(lines).rstrip() + "\n")
    (site / "llms-full.txt").write_text("\n".join(whole).rstrip() + "\n")
    return count


def broken(site: Path) -> list[str]:
    """Links of llms.txt that lead nowhere."""
    links = re.findall(r"\]\(([^)]+)\)", (site / "llms.txt").read_text())
    return [f"llms.txt: {link} leads nowhere" for link in links if not (site / link).exists()]
