"""Gathers what the site is built from: ``docs/``, and every file of the repository that it links to.

A site cannot link out of itself into the repository. So a README that is linked to becomes a page, source code a page
that shows it, a folder a page that lists it, and anything else is copied; all below ``repository/``.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.docs.documents import ROOT

DOCS = ROOT / "docs"
PLACE = "repository"
LARGEST_SHOWN = 120_000
"""Bytes of a file that gets a page."""
MOST_LISTED_WITH_PAGES = 30
"""Files of a folder."""
LANGUAGES = {
    ".cpp": "cpp",
    ".go": "go",
    ".h": "cpp",
    ".proto": "protobuf",
    ".py": "python",
    ".sh": "bash",
    ".toml": "toml",
    ".ts": "typescript",
    ".yaml": "yaml",
    ".yml": "yaml",
}
PLAIN = {"", ".js", ".json", ".java", ".cs", ".txt"}
"""Shown without colours."""
_NOT_SEARCHED = "---\nsearch:\n  exclude: true\n---\n\n"
_LINK = re.compile(r"(!?\[(?:[^\[\]]|\[[^\[\]]*\])*\]\()([^)\s]+)(\))")
_FENCED = re.compile(r"^(`{3,})[^\n]*\n.*?^\1$", re.MULTILINE | re.DOTALL)


def outside_fences(text: str, change: Callable[[str], str]) -> str:
    """The text, with what is no fenced code changed."""
    kept, position = [], 0
    for match in _FENCED.finditer(text):
        kept += [change(text[position : match.start()]), match[0]]
        position = match.end()
    return "".join([*kept, change(text[position:])])


class Stage:
    """A folder that becomes a site."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._waiting: list[Path] = []
        """Files and folders of the repository that are linked to, and not there yet."""
        self._staged: set[Path] = set()

    def fill(self) -> None:
        """Put everything there."""
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.copytree(DOCS, self.folder)
        for page in sorted(DOCS.rglob("*.md")):
            place = self.folder / page.relative_to(DOCS)
            self._write(place, self._with_links(page.read_text(), page))
        while self._waiting:
            target = self._waiting.pop()
            if target not in self._staged:
                self._staged.add(target)
                self._bring(target)

    def _write(self, place: Path, text: str) -> None:
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)

    def place_of(self, target: Path) -> Path:
        """Where a file or folder of the repository is, in this folder."""
        if target.is_relative_to(DOCS):
            return self.folder / target.relative_to(DOCS)
        place = self.folder / PLACE / target.relative_to(ROOT)
        if target.is_dir():
            return place / ("README.md" if (target / "README.md").exists() else "index.md")
        return place.with_name(f"{place.name}.md") if is_shown(target) else place

    def _with_links(self, text: str, source: Path) -> str:
        """A document's text, with links that lead to the same things from where it is staged."""

        def led(match: re.Match[str]) -> str:
            path, hash_sign, anchor = match[2].partition("#")
            if not path or re.match(r"[a-z]+:", path):
                return match[0]
            target = Path(os.path.normpath(source.parent / path))
            if not target.exists():  # a page that is made, or a link that the built site's check reports
                return match[0]
            if target.is_dir() and (target / "README.md").exists():
                target /= "README.md"
            if not target.is_relative_to(DOCS):
                self._waiting.append(target)
            here = self.place_of(source)
            led_to = os.path.relpath(self.place_of(target), here.parent)
            return f"{match[1]}{led_to}{hash_sign}{anchor}{match[3]}"

        return outside_fences(text, lambda part: _LINK.sub(led, part))

    def _bring(self, target: Path) -> None:
        place = self.place_of(target)
        name = target.relative_to(ROOT)
        if target.is_dir():
            self._write(place, f"{_NOT_SEARCHED}# {name}/\n\n" + "\n".join(self._listed(target)) + "\n")
        elif target.suffix == ".md":
            self._write(place, self._with_links(target.read_text(), target))
        elif is_shown(target):
            code, fence = target.read_text(), "`" * 4
            language = LANGUAGES.get(target.suffix, "text")
            self._write(place, f"{_NOT_SEARCHED}# {name}\n\n{fence}{language}\n{code.rstrip()}\n{fence}\n")
        else:
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(target, place)

    def _listed(self, folder: Path) -> Iterator[str]:
        """One line for each file below a folder; where they are few, they get pages."""
        tracked = subprocess.run(["git", "ls-files", "."], cwd=folder, capture_output=True, text=True, check=True)
        names = tracked.stdout.splitlines()
        for path in (folder / name for name in names if not Path(name).name.startswith(".")):
            name = path.relative_to(folder)
            if len(names) <= MOST_LISTED_WITH_PAGES and (is_shown(path) or path.suffix == ".md"):
                self._waiting.append(path)
                yield f"- [{name}]({os.path.relpath(self.place_of(path), self.place_of(folder).parent)})"
            else:
                yield f"- `{name}`"


def is_shown(target: Path) -> bool:
    """Whether a file gets a page that shows it as code."""
    known = target.suffix in LANGUAGES or target.suffix in PLAIN
    return target.is_file() and known and target.stat().st_size <= LARGEST_SHOWN
