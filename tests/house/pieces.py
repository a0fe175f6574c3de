"""Counts the pieces of which the code is made: ``python -m tests.house.pieces [--against REF]``.

Of this tree, and beside it of a commit, branch or tag. It reads texts alone, so that a tree need not run to be counted.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import subprocess
import tarfile
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("engine_core", "services", "tests")
FAMILIES = ("mixtral", "gpt_oss", "deepseek_v3")
SOURCES = (".py", ".h", ".cpp")
_GENERATED = re.compile(r"_pb2(_grpc)?\.py$")
_FAMILY_CODE = re.compile(r"engine_core/(models|layers)/.+\.py")
_OPERATIONS = re.compile(r"engine_core/layers/(activation|base|graph|mxfp4|selector|(gpu|native|torch)_\w+)\.py")
"""What stood among the layers before it had rooms of its own."""
_ELEMENTWISE = re.compile(r"sigmoid_gate|SigmoidGate|add_gated")
"""One elementwise operation: the files that name it are those that another touches."""
_THIS = re.compile(r"tests/house/(test_)?pieces\.py")

Tree = Mapping[str, str]
"""Texts of source files, by path."""
Function = ast.FunctionDef | ast.AsyncFunctionDef


def working_tree() -> Tree:
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    paths = [path for path in listed.stdout.decode().split("\0") if _is_source(path) and (ROOT / path).is_file()]
    return {path: (ROOT / path).read_text() for path in paths}


def tree_of(ref: str) -> Tree:
    archive = subprocess.run(["git", "archive", ref], cwd=ROOT, check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        members = [member for member in tar.getmembers() if member.isfile() and _is_source(member.name)]
        return {member.name: tar.extractfile(member).read().decode() for member in members}  # type: ignore[union-attr]


def _is_source(path: str) -> bool:
    return path.endswith(SOURCES) and not _GENERATED.search(path)


def imported(text: str) -> Iterator[str]:
    """Dotted names of all that a module imports, wherever in it."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def pieces(tree: Tree, room: str) -> dict[str, str]:
    """Counts of one room, by what is counted."""
    texts = {path: text for path, text in tree.items() if path.startswith(f"{room}/")}
    modules = {path: ast.parse(text) for path, text in texts.items() if path.endswith(".py")}
    nodes = [(path, node) for path, module in modules.items() for node in ast.walk(module)]
    functions = [(path, node) for path, node in nodes if isinstance(node, Function)]
    words = Counter(word for path in modules for word in re.findall(r"\w+", texts[path]))
    private = {node.name for _, node in functions if re.match(r"_(?!_)", node.name)}
    signatures = ((_parameters(node), f"{Path(path).name}: {node.name}") for path, node in functions)
    longest, where = max(signatures, default=(0, ""))
    return {
        "modules": f"{len(modules):,}",
        "lines": f"{sum(len(text.splitlines()) for text in texts.values()):,}",
        "classes": f"{sum(isinstance(node, ast.ClassDef) for _, node in nodes):,}",
        "functions of one statement": f"{sum(_has_one_statement(node) for _, node in functions):,}",
        "private helpers called once": f"{sum(words[name] == 2 for name in private):,}",
        "longest signature": f"{longest} ({where})",
    }


def _has_one_statement(function: Function) -> bool:
    return len(function.body) - (ast.get_docstring(function) is not None) == 1


def _parameters(function: Function) -> int:
    """Without ``self``; none of a GPU kernel, whose pointers and strides are a matter of its own."""
    if any("jit" in ast.unparse(decorator) for decorator in function.decorator_list):
        return 0
    given = function.args
    names = [
        each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg) if each
    ]
    return len(names) - (names[:1] in (["self"], ["cls"]))


def open_files(tree: Tree, family: str) -> list[str]:
    """What a family's computation is read in: its file, and what that imports of models and layers, and so on."""
    found, follow = set(), [f"engine_core/models/{family}.py"]
    while follow:
        path = follow.pop()
        if path in tree and path not in found and _FAMILY_CODE.match(path) and not _OPERATIONS.match(path):
            found.add(path)
            for name in imported(tree[path]):
                follow += [f"{base.replace('.', '/')}.py" for base in (name, name.rpartition(".")[0])]
    return sorted(found)


def elementwise_files(tree: Tree) -> list[str]:
    return sorted(path for path, text in tree.items() if _ELEMENTWISE.search(text) and not _THIS.match(path))


def table(trees: Mapping[str, Tree]) -> str:
    """A column for each tree, by its name."""
    rows = [("", *trees)]
    for room in ROOMS:
        columns = [pieces(tree, room) for tree in trees.values()]
        rows += [
            (room, *("" for _ in columns)),
            *((f"  {what}", *(one[what] for one in columns)) for what in columns[0]),
        ]
    lists = {f"files open for {family}": [open_files(tree, family) for tree in trees.values()] for family in FAMILIES}
    lists["files of an elementwise operation"] = [elementwise_files(tree) for tree in trees.values()]
    for what, each in lists.items():
        lines = (
            sum(len(tree[file].splitlines()) for file in files)
            for tree, files in zip(trees.values(), each, strict=True)
        )
        rows.append((what, *(f"{len(files)} ({count:,} lines)" for files, count in zip(each, lines, strict=True))))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    for what, each in lists.items():
        lines += [f"{what}, {name}: {' '.join(files)}" for name, files in zip(trees, each, strict=True)]
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        prog="python -m tests.house.pieces", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--against", metavar="REF", help="a commit, branch or tag to count beside this tree")
    against = parser.parse_args().against
    print(table({**({against: tree_of(against)} if against else {}), "this tree": working_tree()}))
