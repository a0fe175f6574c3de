"""The committed stubs are what the oldest supported tools make of the committed protos, byte for byte."""

from __future__ import annotations

import os
from pathlib import Path

from tests.programs import output_of
from tests.ring import ROOT

CLIENT = ROOT / "clients" / "python"
OLDEST_BIN = ROOT / ".venv-oldest" / "bin"


def stubs_below(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.glob("ringline/*/v1/*") if path.suffix in (".py", ".pyi"))
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def test_stubs_are_those_of_the_protos(tmp_path: Path) -> None:
    assert (OLDEST_BIN / "python").exists(), "run `make setup`, which installs the oldest supported tools"
    path = {"PATH": f"{OLDEST_BIN}:{os.environ['PATH']}"}
    output_of(OLDEST_BIN / "python", CLIENT / "generate.py", "--out", tmp_path, env=path)
    expected, committed = stubs_below(tmp_path), stubs_below(CLIENT)
    assert len(expected) >= 18
    assert expected.keys() == committed.keys()
    assert [name for name in expected if expected[name] != committed[name]] == [], "run `make stubs`"
