"""The programs of ``node/``, compiled against freshly generated stubs."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from tests.programs import output_of
from tests.ring import ROOT

NODE_CLIENT = Path(__file__).resolve().parent / "node"
BUF = Path(sys.executable).parent / "buf"


def compiled_programs() -> Path:
    """The folder of the programs."""
    assert (NODE_CLIENT / "node_modules").exists(), "run `make setup`, which installs what the Node client needs"
    shutil.rmtree(NODE_CLIENT / "build", ignore_errors=True)
    output_of(BUF, "generate", ROOT / "protos", cwd=NODE_CLIENT)
    output_of("node", "node_modules/typescript/bin/tsc", "-p", ".", cwd=NODE_CLIENT)
    return NODE_CLIENT / "build" / "js"
