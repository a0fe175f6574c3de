"""An engine, and a processor's checks, where llguidance is not installed: only grammars need it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.programs import run
from tests.ring import MODEL, ROOT

BLOCKER = """
import sys
from importlib import metadata


class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "llguidance":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def version(name, found=metadata.version):
    if name == "llguidance":
        raise metadata.PackageNotFoundError(name)
    return found(name)


metadata.version = version
sys.meta_path.insert(0, Blocker())
"""
PROGRAM = f"""
import sys
from pathlib import Path

from engine_core.llm import LLM
from engine_core.offline.sampling_params import SamplingParams
from engine_core.errors import InvalidRequestError
from text_core.grammar.checker import GrammarChecker
from text_core.grammar.constraints import ConstraintError
from text_core.tokenizer import Tokenizer

ranks = int(sys.argv[1])
with LLM({str(MODEL)!r}, tensor_parallel_size=ranks, kv_cache_memory_bytes=32 << 20, max_model_len=256) as llm:
    [result] = llm.generate("Once", SamplingParams(max_tokens=3, ignore_eos=True))
    print(len(result.choices[0].token_ids))
    try:
        llm.generate("Once", SamplingParams(json_object=True))
    except InvalidRequestError as error:
        print(error)
tokenizer = Tokenizer.from_directory(Path({str(MODEL)!r}))
try:
    GrammarChecker(tokenizer, tokenizer.vocab_size, [0]).check('start: "a"')
except ConstraintError as error:
    print(error.problem)
"""


@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.wide)])
def test_answers_come_and_grammars_are_refused_by_name(ranks: int, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(BLOCKER)  # of every process of the engine
    paths = [str(tmp_path), str(ROOT), os.environ.get("PYTHONPATH", "")]
    done = run(sys.executable, "-c", PROGRAM, str(ranks), env={"PYTHONPATH": os.pathsep.join(filter(None, paths))})
    assert done.returncode == 0, done.stderr
    count, *refusals = done.stdout.splitlines()
    assert count == "3"
    assert len(refusals) == 2
    assert all("llguidance is not installed" in refusal for refusal in refusals)
