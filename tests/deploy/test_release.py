"""``make release`` in a repository of its own, with targets of make that take no minutes."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from deploy.release import bills
from deploy.release.__main__ import main
from deploy.release.versions import PLACES, ReleaseError, bound
from tests.ring import ROOT

NOW, NEXT = "0.1.0", "0.2.0"
TYPESCRIPT = {
    "clients/typescript/package.json": '{\n  "name": "@ringline/client",\n  "version": "0.1.0"\n}\n',
    "clients/typescript/package-lock.json": '{\n  "name": "@ringline/client",\n  "version": "0.1.0",\n  "packages": {\n'
    '    "": {\n      "name": "@ringline/client",\n      "version": "0.1.0"\n    },\n' + "\n" * 9 + '    "other": {\n'
    '      "version": "0.1.0"\n    }\n  }\n}\n',
    "deploy/helm/ringline/Chart.yaml": "name: ringline\nversion: 0.1.0\nappVersion: 0.1.0\n",
}
MAKEFILE = """
proto-baseline:
	echo new > protos/baseline.binpb
wheels:
	mkdir -p dist
	grep -h '^version' pyproject.toml clients/python/pyproject.toml > dist/ringline-all.whl
"""

NPM = """#!/bin/sh
case $1 in pack) echo "$2" | sed s/--pack-destination=// | { read dist; cp package.json "$dist/client.tgz"; } ;; esac
"""


def git(checkout: Path, *arguments: str) -> str:
    who = ["-c", "user.name=test", "-c", "user.email=test@example.com"]
    return subprocess.run(["git", *who, *arguments], cwd=checkout, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A clone, as far as a release looks."""
    files = {"CHANGELOG.md": "# What is new\n\n## Unreleased\n\n**New**\n\n- All of it.\n\n## 0.1.0\n\n- Some.\n"}
    files |= TYPESCRIPT | {"Makefile": MAKEFILE, "protos/baseline.binpb": "old\n", ".gitignore": "dist/\n"}
    for name in (place.path for place in PLACES):
        if name not in files:
            files[name] = (ROOT / name).read_text()
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    for path in ("pyproject.toml", "clients/python/pyproject.toml"):
        version = tomllib.loads(files[path])["project"]["version"]
        (tmp_path / path).write_text(files[path].replace(f'version = "{version}"', f'version = "{NOW}"', 1))
    git(tmp_path, "init", "-q")
    commit(tmp_path)
    programs = tmp_path.with_name(f"{tmp_path.name}-programs")
    programs.mkdir()
    (programs / "npm").write_text(NPM)
    (programs / "npm").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")

    def write(root: Path, dist: Path, version: str, work: Path, say: Callable[[str], None]) -> list[Path]:
        (dist / f"ringline-{version}.cdx.json").write_text("{}")
        return []

    monkeypatch.setattr(bills, "write", write)
    return tmp_path


def commit(checkout: Path) -> None:
    git(checkout, "add", "-A")
    git(checkout, "commit", "-qm", "All")


def test_a_release_sets_every_version_and_fills_dist(checkout: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main([NEXT], checkout) == 0
    for path in ("pyproject.toml", "clients/python/pyproject.toml"):
        assert tomllib.loads((checkout / path).read_text())["project"]["version"] == NEXT
    needed = map(Requirement, tomllib.loads((checkout / "pyproject.toml").read_text())["project"]["dependencies"])
    (client,) = [str(one.specifier) for one in needed if one.name == "ringline"]
    assert set(client.split(",")) == {">=0.2.0", "<0.3"}
    assert json.loads((checkout / "clients/typescript/package.json").read_text())["version"] == NEXT
    lock = json.loads((checkout / "clients/typescript/package-lock.json").read_text())
    assert (lock["version"], lock["packages"][""]["version"], lock["packages"]["other"]["version"]) == (NEXT, NEXT, NOW)
    assert (checkout / "deploy/helm/ringline/Chart.yaml").read_text().count(NEXT) == 2
    assert (checkout / "protos/baseline.binpb").read_text() == "new\n"
    head, section, old = (checkout / "CHANGELOG.md").read_text().split("\n## ")[1:]
    assert head.strip() == "Unreleased"
    assert section.startswith(f"{NEXT}, 2")
    assert "- All of it." in section
    assert old.startswith(NOW)
    sums = dict(reversed(line.split()) for line in (checkout / "dist" / "SHA256SUMS").read_text().splitlines())
    assert sums.keys() == {"ringline-all.whl", "client.tgz", f"ringline-{NEXT}.cdx.json"}
    wheel = (checkout / "dist" / "ringline-all.whl").read_bytes()
    assert sums["ringline-all.whl"] == hashlib.sha256(wheel).hexdigest()
    assert wheel.decode().split() == ["version", "=", f'"{NEXT}"'] * 2, "wheels have the new version"
    printed = capfd.readouterr().out
    for command in (f"git tag -a v{NEXT}", f"docker build --target engine -t ringline-engine:{NEXT} "):
        assert command in printed
    assert main([NEXT], checkout) == 1, "the tree has changes now"
    commit(checkout)
    assert main([NEXT], checkout) == 1
    assert f"{NEXT} is there already: CHANGELOG.md has a section for it" in capfd.readouterr().err


def test_a_dry_run_changes_nothing(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([NEXT, "--dry-run"], checkout) == 0
    assert not git(checkout, "status", "--porcelain", "--ignored")
    printed = capsys.readouterr().out
    assert 'clients/python/pyproject.toml: version = "0.2.0"' in printed
    assert 'pyproject.toml: "ringline>=0.2.0,<0.3",' in printed
    assert f"git push origin HEAD v{NEXT}" in printed


def spoil(checkout: Path, name: str, old: str, new: str) -> None:
    path = checkout / name
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    commit(checkout)


REFUSED = {
    "no version": ("0.2", lambda _: None, "'0.2' is no version: expected three numbers, such as 0.2.0"),
    "a command": ("1.0; rm -rf x", lambda _: None, "'1.0; rm -rf x' is no version"),
    "other digits": ("0.\u0662.0", lambda _: None, "'0.\u0662.0' is no version"),
    "with zeros": ("0.02.0", lambda _: None, "'0.02.0' is no version"),
    "the same": ("0.1.0", lambda _: None, "0.1.0 is there already: CHANGELOG.md has a section for it"),
    "lower": ("0.0.9", lambda _: None, "0.0.9 is not above 0.1.0, the version that there is: choose a higher one"),
    "a tag": (NEXT, lambda at: git(at, "tag", f"v{NEXT}"), "0.2.0 is there already: git has the tag v0.2.0"),
    "a higher tag": (NEXT, lambda at: git(at, "tag", "v0.10.0"), "0.2.0 is not above 0.10.0"),
    "changes": (NEXT, lambda at: (at / "new.txt").touch(), "there are changes that git has not got, such as new.txt"),
    "nothing new": (
        NEXT,
        lambda at: spoil(at, "CHANGELOG.md", "- All of it.\n", ""),
        "CHANGELOG.md has nothing under Unreleased: say what is new",
    ),
    "a version elsewhere": (
        NEXT,
        lambda at: spoil(at, "clients/python/pyproject.toml", "version = ", 'dynamic = ["version"] # '),
        "clients/python/pyproject.toml has no line like ",
    ),
}


@pytest.mark.parametrize(("version", "harm", "refusal"), REFUSED.values(), ids=REFUSED)
def test_a_release_that_would_be_wrong_is_refused(checkout: Path, version, harm, refusal, capsys) -> None:
    harm(checkout)
    before = git(checkout, "status", "--porcelain")
    assert main([version], checkout) == 1
    assert capsys.readouterr().err.startswith(f"No release: {refusal}")
    assert git(checkout, "status", "--porcelain") == before


@pytest.mark.parametrize("failing", ["make", "bills"])
def test_a_step_that_fails_leaves_the_tree_as_it_was(checkout: Path, failing, monkeypatch, capfd) -> None:
    def fail(*_: object) -> None:
        raise ReleaseError("the package index is away")

    if failing == "make":
        spoil(checkout, "Makefile", "mkdir -p dist", "exit 3")
    else:
        monkeypatch.setattr(bills, "write", fail)
    assert main([NEXT], checkout) == 1
    said = {"make": "`make wheels` failed, as it says above", "bills": "the package index is away"}[failing]
    assert f"No release: {said}" in capfd.readouterr().err
    assert not git(checkout, "status", "--porcelain")


def test_the_places_of_this_repository_are_where_a_release_looks() -> None:
    assert bound("0.2.3") == ">=0.2.3,<0.3"
    assert bound("1.4.0") == ">=1.4.0,<2"
    versions = {
        tomllib.loads((ROOT / path).read_text())["project"]["version"]
        for path in ("pyproject.toml", "clients/python/pyproject.toml")
    }
    package = ROOT / "clients" / "typescript" / "package.json"
    versions |= {json.loads(package.read_text())["version"]} if package.exists() else set()
    assert len(versions) == 1, "all distributions have one version"


def test_a_bill_says_nothing_of_the_machine_that_made_it(tmp_path: Path) -> None:
    here, away = {"type": "distribution", "url": "file:///here"}, {"type": "website", "url": "https://other.example"}
    bill = {
        "metadata": {"component": {"type": "application", "name": "ringline-server", "bom-ref": "root"}},
        "components": [
            {"name": "ringline", "version": NEXT, "externalReferences": [here]},
            {"name": "other", "version": "1", "purl": "pkg:pypi/other@1", "externalReferences": [here, away]},
        ],
    }
    path = tmp_path / "bill.json"
    path.write_text(json.dumps(bill))
    own, other = json.loads(bills._cleaned(path, "ringline-server", NEXT))["components"]
    assert own == {"name": "ringline", "version": NEXT, "purl": f"pkg:pypi/ringline@{NEXT}"}
    assert other["externalReferences"] == [away]
    main = json.loads(bills._cleaned(path, "image-engine", NEXT))["metadata"]["component"]
    assert (main["type"], main["name"], main["version"]) == ("container", "ringline-engine", NEXT)


def test_every_image_has_a_bill() -> None:
    targets = {line.split()[-1] for line in (ROOT / "Dockerfile").read_text().splitlines() if line.startswith("FROM")}
    assert targets.issuperset(bills.IMAGES)
    assert {name for bill in bills.BILLS for name in bill.names} >= {f"image-{name}" for name in bills.IMAGES}
