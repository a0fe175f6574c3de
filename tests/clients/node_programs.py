"""The programs of ``node/`` and of the documents, compiled against freshly generated stubs."""

from __future__ import annotations

import shutil
import sys
from functools import cache
from pathlib import Path

from tests.docs.documents import blocks
from tests.programs import output_of
from tests.ring import ROOT

NODE_CLIENT = Path(__file__).resolve().parent / "node"
BUF = Path(sys.executable).parent / "buf"


IMPORTS = """\
import { credentials } from "@grpc/grpc-js";
import { GenerateRequest, InferenceServiceClient } from "../stubs/ringline/inference/v1/inference.js";
"""
"""What the excerpts in the documents leave out."""


@cache  # the compiler takes seconds
def compiled_programs() -> Path:
    """The folder of the programs; those of the documents are in ``build/examples``, by their blocks' names.

    It is for tests that use the ring, which are all in one process: the folder is the same for all.
    """
    assert (NODE_CLIENT / "node_modules").exists(), "run `make setup`, which installs what the Node client needs"
    shutil.rmtree(NODE_CLIENT / "build", ignore_errors=True)
    output_of(BUF, "generate", ROOT / "protos", cwd=NODE_CLIENT)
    (NODE_CLIENT / "build" / "examples").mkdir()
    for block in blocks("ts"):
        (NODE_CLIENT / "build" / "examples" / f"{block}.ts".replace("/", "-")).write_text(IMPORTS + block.code)
    output_of("node", "node_modules/typescript/bin/tsc", "-p", ".", cwd=NODE_CLIENT)
    return NODE_CLIENT / "build" / "js"
