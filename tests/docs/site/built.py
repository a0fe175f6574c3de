"""Reads the built site: every link leads somewhere, and a page asks no other host for anything."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

BASE = "https://site.invalid/"
_FETCHED = {"img": "src", "script": "src", "source": "src", "iframe": "src", "video": "src", "audio": "src"}
_FETCHING_RELATIONS = {"stylesheet", "icon", "preload", "preconnect", "prefetch", "modulepreload", "manifest"}
_IN_STYLES = re.compile(r"""(?:url\(|@import)\s*["']?((?:https?:)?//[^"')\s]+)""")


class Page(HTMLParser):
    """One page: where its links lead, what it fetches, and the names in it that links can lead to."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.links: list[str] = []
        self.fetched: list[str] = []
        self.names: set[str] = {"", "top"}
        self.feed(html)
        self.fetched += _IN_STYLES.findall(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.names |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        elif tag == "link" and _FETCHING_RELATIONS & {*given.get("rel", "").split()}:
            self.fetched.append(given.get("href", ""))
        elif tag in _FETCHED and given.get(_FETCHED[tag]):
            self.fetched.append(given[_FETCHED[tag]])


@dataclass
class Findings:
    """What was looked at, and what is wrong."""

    pages: int = 0
    inner: int = 0
    """Links to places in the site, and files that pages fetch."""
    outer: int = 0
    """Links to other sites: their form alone is looked at."""
    wrong: list[str] = field(default_factory=list)


def is_well_formed(link: str) -> bool:
    """Whether a link to another site can be one."""
    parts = urlsplit(link)
    if parts.scheme == "mailto":
        return "@" in parts.path
    return parts.scheme in ("http", "https") and "." in (parts.hostname or "") and " " not in link


def is_local(link: str) -> bool:
    """Whether a link leads to the reader's own machine, such as to a chat page."""
    return urlsplit(link).hostname in ("localhost", "127.0.0.1")


def address_of(path: Path, site: Path) -> str:
    return urljoin(BASE, path.relative_to(site).as_posix())


def looked_at(site: Path) -> Findings:
    """Everything that is wrong with the links of a built site."""
    pages = {address_of(path, site): Page(path.read_text()) for path in sorted(site.rglob("*.html"))}
    files = {address_of(path, site) for path in site.rglob("*") if path.is_file()}
    found = Findings(pages=len(pages))
    for address, page in pages.items():
        where = address.removeprefix(BASE) or "/"
        for link in page.links + page.fetched:
            absolute, anchor = urldefrag(urljoin(address, link))
            absolute += "index.html" if absolute.endswith("/") else ""  # what servers answer for a folder
            if absolute.startswith(BASE):
                found.inner += 1
                if unquote(absolute) not in files:
                    found.wrong.append(f"{where}: {link} leads nowhere")
                elif absolute in pages and unquote(anchor) not in pages[absolute].names:
                    found.wrong.append(f"{where}: {link} names a place that is not on that page")
            elif link in page.fetched and not link.startswith("data:"):
                found.wrong.append(f"{where}: fetches {link} from another host")
            elif not link.startswith("data:"):
                found.outer += 1
                if not is_well_formed(link) and not is_local(link):
                    found.wrong.append(f"{where}: {link} is no address")
    for path in site.rglob("*.css"):
        found.wrong += [f"{path.name}: fetches {link}" for link in _IN_STYLES.findall(path.read_text())]
    return found
