"""The programs in the documents run as they are printed, with the addresses of the running ring."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from tests.docs.documents import ROOT, Block, blocks
from tests.programs import output_of
from tests.ring import Ring

NODE_CLIENT = ROOT / "tests" / "clients" / "node"
BUF = Path(sys.executable).parent / "buf"
PYTHON, TYPESCRIPT = blocks("python"), blocks("ts")
SILENT = {"clients/python/README.md-4", *(f"docs/client.md-{number}" for number in (4, 6, 7, 8))}
"""Examples that print nothing."""
TRIES = 5
"""Answers of some are drawn: one may be empty, as its first token may be the end; but not all."""

IMPORTS = """\
import { credentials } from "@grpc/grpc-js";
import { GenerateRequest, InferenceServiceClient } from "./build/stubs/ringline/inference/v1/inference.js";
"""
"""What the excerpt leaves out."""


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
def test_typescript(block: Block, ring: Ring, tmp_path: Path) -> None:
    assert (NODE_CLIENT / "node_modules").exists(), "run `make setup`, which installs what the Node client needs"
    for name in ("package.json", "tsconfig.json"):
        shutil.copy(NODE_CLIENT / name, tmp_path)
    (tmp_path / "node_modules").symlink_to(NODE_CLIENT / "node_modules")
    (tmp_path / "smoke.ts").write_text(IMPORTS + with_addresses(block.code, ring))

    output_of(BUF, "generate", ROOT / "protos", "-o", tmp_path, cwd=NODE_CLIENT)
    output_of("node", "node_modules/typescript/bin/tsc", "-p", ".", cwd=tmp_path)
    assert any(output_of("node", "build/js/smoke.js", cwd=tmp_path).strip() for _ in range(TRIES))
