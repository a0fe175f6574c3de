"""``python -m tests.vectors``: all-MiniLM-L6-v2's vectors of 1,000 texts by every way in, beside transformers.

In float32, by ``LLM`` and, through ``ringline serve``, by the client and over HTTP. Each vector must point where
transformers' does (cosine of at least 0.99999), and rank the other texts as it does; by every way the bits must be the
same. Exits 1 if that fails. Where two cosines are closer than float32 can tell, either order is right.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import urllib.request
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import ringline
import torch
from transformers import AutoModel, AutoTokenizer

from engine_core.llm import LLM
from engine_core.model_loader.location import find_checkpoint
from tests.ring import running_ring
from tests.vectors.sentences import sentences

LEAST_COSINE = 0.99999
NEAR = 2e-6
"""Cosines that differ by less are equal."""
MODEL = "minilm"
MAX_TOKENS = 256
"""As sentence_bert_config.json says."""
AT_A_TIME = 200
"""Texts of one HTTP request."""
Vectors = npt.NDArray[np.float32]
"""[texts, dimensions]"""


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.vectors", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--texts", type=int, default=1000, help="how many (default: 1000)")
    given = parser.parse_args()
    texts = sentences(given.texts)
    checkpoint = find_checkpoint(MODEL, None, None, weights=True)
    texts = _short_enough(checkpoint, texts)
    wanted = reference(checkpoint, texts)
    ways = {"LLM": offline(texts), "LLM, one at a time": offline(texts, alone=True)} | served(texts)
    problems = 0
    first = next(iter(ways.values()))
    for way, vectors in ways.items():
        cosines = (vectors * wanted).sum(1)
        reordered = _reordered(vectors, wanted)
        same_bits = vectors.tobytes() == first.tobytes()
        print(
            f"{way}: {len(texts)} texts, least cosine {cosines.min():.7f}, {reordered} rankings differ, "
            f"bits {'equal' if same_bits else 'NOT equal'} to those of the first way",
            flush=True,
        )
        problems += int(not cosines.min() >= LEAST_COSINE) + reordered + (not same_bits)
    print(f"problems: {problems}")
    return 1 if problems else 0


def _short_enough(checkpoint: Path, texts: Sequence[str]) -> list[str]:
    """The texts, cut where they are longer than the model takes."""
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    cut = []
    for text in texts:
        offsets = tokenizer(text, return_offsets_mapping=True, truncation=True, max_length=MAX_TOKENS)["offset_mapping"]
        cut.append(text[: offsets[-2][1]])
    return cut


@torch.inference_mode()
def reference(checkpoint: Path, texts: Sequence[str]) -> Vectors:
    """By transformers: the mean of the hidden states of a text's tokens, scaled to a length of 1."""
    tokenizer, model = AutoTokenizer.from_pretrained(checkpoint), AutoModel.from_pretrained(checkpoint).eval()
    vectors = []
    for text in texts:
        hidden = model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0]
        vectors.append(torch.nn.functional.normalize(hidden.mean(0), dim=0).numpy())
    return np.stack(vectors)


def _reordered(vectors: Vectors, wanted: Vectors) -> int:
    """How many texts rank the others in another order than ``wanted`` says, where that can be told."""
    found, right = vectors @ vectors.T, wanted @ wanted.T
    reordered = 0
    for mine, theirs in zip(found, right, strict=True):
        in_order = theirs[np.argsort(-mine, kind="stable")]
        reordered += bool((np.diff(in_order) > NEAR).any())
    return reordered


def offline(texts: Sequence[str], *, alone: bool = False) -> Vectors:
    """By ``LLM``; ``alone``: no two texts share a step."""
    with LLM(MODEL, dtype="float32", max_num_seqs=1 if alone else 64) as llm:
        return np.array([each.outputs.embedding for each in llm.embed(list(texts))], np.float32)


def served(texts: Sequence[str]) -> dict[str, Vectors]:
    """By the client and over HTTP, from a ring."""
    with (
        tempfile.TemporaryDirectory() as directory,
        running_ring(Path(directory), "--dtype", "float32", model=Path(MODEL), http=True) as ring,
    ):
        with ringline.Client(ring.address) as client:
            by_client = np.array([list(vector) for vector in client.embed(list(texts))], np.float32)
        over_http = [
            vector
            for start in range(0, len(texts), AT_A_TIME)
            for vector in _over_http(ring.http, texts[start : start + AT_A_TIME])
        ]
    return {"client": by_client, "HTTP": np.array(over_http, np.float32)}


def _over_http(address: str, texts: Sequence[str]) -> list[list[float]]:
    body = json.dumps({"model": MODEL, "input": list(texts)}).encode()
    request = urllib.request.Request(f"{address}/v1/embeddings", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=300) as answer:
        return [each["embedding"] for each in json.load(answer)["data"]]


if __name__ == "__main__":
    sys.exit(main())
