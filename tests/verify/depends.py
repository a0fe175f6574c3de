"""What a suite's result depends on: the modules where it begins, all that these import, and the data beside them."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.verify.suites import Suite

PACKAGES = {"ringline": "clients/python/ringline"}
"""Where a package is that is not at the top of the tree."""
_FROM = re.compile(r"^\s*from (\.*)([\w.]*) import (\([^)]*\)|.*)$", re.MULTILINE)
_IMPORT = re.compile(r"^\s*import ([\w., ]+)$", re.MULTILINE)
_NAMED = re.compile(r"[\"']((?:engine_core|services|text_core|ringline|tests|benchmarks)(?:\.\w+)+)[\"']")


class Sources:
    """The files of a checkout, as they are when this is made."""

    def __init__(self, checkout: Path) -> None:
        self._checkout = checkout
        self._names = self._listed(".")

    def of(self, suite: Suite) -> set[str]:
        """The files that a suite depends on, by their paths below the checkout.

        Data counts where the suite names it, and where it lies in the folder of a module that counts; documents, where
        the suite names them.
        """
        modules = self._closure([*self._modules(suite.begins), *self._marked(suite.mark)])
        listed = self._listed(*suite.data, *sorted({_folder(path) for path in modules}))
        return modules | {path for path in listed if not path.endswith((".py", ".md"))} | self._listed(*suite.data)

    def _modules(self, names: Iterable[str]) -> list[str]:
        found = []
        for name in names:
            own = self._place(name)
            if not (self._checkout / f"{own}.py").is_file() and not (self._checkout / own).is_dir():
                raise ValueError(f"there is no module {name}: correct the suite that begins there")
            found += self._files(name)
        return found

    def _marked(self, mark: str | None) -> list[str]:
        """The tests that bear the mark, with what pytest reads before them."""
        if mark is None:
            return []
        texts = {path: self._text(path) for path in self._names if re.fullmatch(r"tests/.*\.py", path)}
        named = [path for path, text in texts.items() if f"pytest.mark.{mark}" in text]
        around = {"/".join((*path.split("/")[:depth], "conftest.py")) for path in named for depth in range(1, 9)}
        return named + sorted(around & texts.keys())

    def _closure(self, paths: list[str]) -> set[str]:
        """Those modules, and all of this checkout that they import, wherever in them."""
        found: set[str] = set()
        while paths:
            path = paths.pop()
            if path not in found:
                found.add(path)
                for name in _imported(self._text(path), path):
                    paths += [*self._files(name), *self._files(name.rpartition(".")[0])]
        return found

    def _files(self, module: str) -> Iterator[str]:
        """A module's own file, and those of the packages that it is in."""
        parts = self._place(module).split("/")
        for depth in range(1, len(parts) + 1):
            yield from self._there("/".join((*parts[:depth], "__init__.py")))
        yield from self._there("/".join(parts) + ".py")

    @staticmethod
    def _place(module: str) -> str:
        first, _, rest = module.partition(".")
        return "/".join([PACKAGES.get(first, first), *filter(None, rest.split("."))])

    def _there(self, path: str) -> Iterator[str]:
        if path in self._names:
            yield path

    def _text(self, path: str) -> str:
        return (self._checkout / path).read_text(errors="replace")

    def _listed(self, *patterns: str) -> set[str]:
        """Files that git has, or would take, by its path patterns; none that was removed."""
        if not patterns:
            return set()
        command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *patterns]
        told = subprocess.run(command, cwd=self._checkout, capture_output=True, check=True).stdout
        return {path for path in os.fsdecode(told).split("\0") if path and (self._checkout / path).is_file()}


def _folder(path: str) -> str:
    """As a pattern of the files in it, without those in folders below."""
    return f":(glob){path.rpartition('/')[0]}/*" if "/" in path else ":(glob)*"


def _imported(text: str, path: str) -> Iterator[str]:
    """Dotted names of all that a module imports, or names whole, as what it runs; ``path`` is its own.

    By its text, as to parse a thousand files takes many seconds: what only looks like an import does no harm.
    """
    yield from _NAMED.findall(text)
    for dots, module, names in _FROM.findall(text):
        package = ".".join(path.split("/")[: -len(dots)]) if dots else ""
        whole = ".".join(filter(None, (package, module)))
        yield from (f"{whole}.{name}" for name in re.findall(r"(\w+)(?: as \w+)?", names))
    for names in _IMPORT.findall(text):
        yield from (name.strip().partition(" ")[0] for name in names.split(","))
