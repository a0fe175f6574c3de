"""The programs in the documents run as they are printed, with the addresses of the running ring."""

from __future__ import annotations

import shutil

import pytest

from tests.clients.node_programs import compiled_programs
from tests.docs.documents import ROOT, Block, blocks
from tests.programs import output_of
from tests.ring import Ring

PYTHON, TYPESCRIPT = blocks("python"), blocks("ts")
SILENT = {"clients/python/README.md-5", *(f"docs/reference/client.md-{number}" for number in (6, 10, 11, 12))}
"""Examples that print nothing."""
TRIES = 5
"""Answers of some are drawn: one may be empty, as its first token may be the end; but not all."""


def with_addresses(code: str, ring: Ring) -> str:
    for host in ("localhost", "127.0.0.1"):
        code = code.replace(f"{host}:50051", ring.address).replace(f"{host}:50061", ring.engine_address)
    return code.replace("http://127.0.0.1:8000", ring.http)


@pytest.mark.parametrize("block", PYTHON, ids=str)
def test_python(block: Block, ring: Ring, monkeypatch, capsys) -> None:
    monkeypatch.chdir(ROOT)
    code = with_addresses(block.code, ring)

    def prints() -> bool:
        exec(compile(code, str(block), "exec", dont_inherit=True), {"__name__": "__main__"})
        return bool(capsys.readouterr().out.strip())

    silent = str(block) in SILENT
    assert any(prints() for _ in range(1 if silent else TRIES)) != silent


@pytest.mark.skipif(not (shutil.which("node") and shutil.which("npm")), reason="Node and npm are not installed")
@pytest.mark.parametrize("block", TYPESCRIPT, ids=str)
def test_typescript(block: Block, ring: Ring) -> None:
    program = compiled_programs() / "build" / "examples" / f"{block}.js".replace("/", "-")
    program.write_text(with_addresses(program.read_text(), ring))
    assert any(output_of("node", program).strip() for _ in range(TRIES))
