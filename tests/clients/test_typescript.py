"""The client for TypeScript, as it is installed from its tarball, under strict types and against a ring."""

from __future__ import annotations

import json
import shutil
import socket
import tarfile
import tomllib
from pathlib import Path
from typing import Any

import pytest
import ringline

from tests.clients import npm_package
from tests.clients.npm_package import EXAMPLES
from tests.programs import output_of
from tests.ring import ROOT, Ring

pytestmark = [
    pytest.mark.skipif(not (shutil.which("node") and shutil.which("npm")), reason="Node and npm are not installed"),
    pytest.mark.usefixtures("ring"),
]

PROMPT = "Once upon a time"
MOST_BYTES = 200_000
"""Of the tarball."""
TRIES = 5
"""Answers of some are drawn, and may be empty; but not all."""


def test_the_tarball_has_what_programs_need(typescript_package: Path) -> None:
    with tarfile.open(typescript_package) as archive:
        names = {name.removeprefix("package/") for name in archive.getnames()}
    assert {"package.json", "README.md", "LICENSE"} <= names
    exports: Any = npm_package.manifest()["exports"]
    entries = [path for entry in exports.values() if isinstance(entry, dict) for path in entry.values()]
    assert {path.removeprefix("./") for path in entries} <= names
    assert not [name for name in names if not name.startswith("dist/") and "/" in name]
    assert typescript_package.stat().st_size < MOST_BYTES


def test_programs_may_have_any_zod() -> None:
    """npm refuses to install beside another version than a peer's, even if the program gives no schema."""
    assert npm_package.manifest().get("peerDependencies", {}) == {}


def test_both_clients_have_one_version_and_license() -> None:
    python = tomllib.loads((ROOT / "clients" / "python" / "pyproject.toml").read_text())["project"]
    npm = npm_package.manifest()
    assert (npm["version"], npm["license"]) == (python["version"], python["license"])


def test_errors_have_the_names_of_the_python_client(typescript_programs: Path) -> None:
    shown = output_of(
        "node",
        "-e",
        "import('@ringline/client').then((it) => console.log(Object.keys(it).join()))",
        cwd=typescript_programs.parent,
    )
    errors = {name for name, kind in vars(ringline).items() if isinstance(kind, type) and issubclass(kind, Exception)}
    assert errors <= set(shown.strip().split(","))


def test_a_program_under_strict_types(ring: Ring, typescript_programs: Path) -> None:
    shown = json.loads(output_of("node", typescript_programs / "example.js", ring.address))
    with ringline.Client(ring.address) as client:
        answer = client.generate(PROMPT, temperature=0, max_tokens=24, ignore_eos=True)
        number = client.generate("Number 7 is", temperature=0, max_tokens=4, ignore_eos=True)
    assert shown["text"] == shown["again"] == shown["streamed"] == answer.text
    assert shown["tokenIds"] == list(answer.token_ids)
    assert shown["exact"]
    assert shown["logprobs"] == [2] * 24
    assert shown["usage"]["completionTokens"] == 24
    assert shown["kinds"][0] == "admitted"
    assert shown["kinds"][-1] == "finished"
    assert shown["mood"]["mood"] in ("happy", "sad")
    assert all(type(number) is int for number in shown["plain"])
    assert shown["choice"] in ("yes", "no")
    ((name, arguments),) = shown["calls"]
    assert (name, set(arguments)) == ("add", {"a", "b"})
    assert shown["told"]
    assert shown["many"] == [len(number.token_ids)] * 300
    assert (shown["models"], shown["back"], shown["pieces"]) == (["tiny"], "Hello", 24)


def test_failures_have_classes(ring: Ring, typescript_programs: Path) -> None:
    shown = json.loads(output_of("node", typescript_programs / "example.js", ring.address))["failures"]
    assert shown == {
        "field": ["InvalidRequest", "sampling.temperature"],
        "model": ["NotFound", "MODEL_NOT_FOUND"],
        "misspelt": ["TypeError", "unknown option max_tokens; did you mean maxTokens?"],
        "range": ["InvalidRequest", "topK"],
        "vectors": ["FailedPrecondition", "UNSUPPORTED"],
        "timeout": ["DeadlineExceeded", None],
        "cut": ["ParseError", shown["cut"][1]],
        "cancelled": ["Cancelled", None],
        "closed": ["Cancelled", None],
        "unreached": ["Unavailable", None],
        "exposed": ["InvalidRequest", "token"],
    }


def test_a_page_asks_the_gateway(ring: Ring, typescript_programs: Path) -> None:
    shown = json.loads(output_of("node", typescript_programs / "browser.js", ring.http))
    with ringline.Client(ring.address) as client:
        answer = client.generate(PROMPT, temperature=0, max_tokens=24, ignore_eos=True)
    assert shown == {
        "text": answer.text,
        "completionTokens": 24,
        "streamed": answer.text,
        "models": ["tiny"],
        "back": "Hello",
        "cancelled": "Cancelled",
        "refused": ["InvalidRequest", "sampling.temperature: -1 is out of range: expected at least 0"],
        "listeners": 0,
        "gone": ["Unavailable"],
    }


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_programs_of_the_pages(name: str, ring: Ring, typescript_programs: Path) -> None:
    address = {"RINGLINE_ADDRESS": ring.address}
    assert any(output_of("node", typescript_programs / f"{name}.js", env=address).strip() for _ in range(TRIES))


def test_a_server_that_never_answers_and_options_that_mean_nothing(typescript_programs: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        told = output_of("node", "hostile.js", str(port), cwd=typescript_programs)
    assert told.strip() == "refused"
