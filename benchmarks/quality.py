"""The effect of rounding weights: next-token distributions compared with those of bfloat16, throughout texts.

    python -m benchmarks.quality

measures the bundled model on documents of its own corpus that it was not trained on, and random weights of the
Qwen3-0.6B shape on random tokens (``--skip-random`` leaves these out), or, with ``--model`` and ``--text``, a
checkpoint on pieces of text files. With ``--ggml``, llama.cpp's ways of rounding are compared, too. For each way it
prints

- the Kullback-Leibler divergence from bfloat16's distribution in thousandths of a nat, mean and 99th percentile,
- the share of positions at which the likeliest token is the same,
- the perplexity of the text.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import gguf
import torch
from transformers import PreTrainedTokenizerFast

from benchmarks.ggml_rounding import GgmlLibrary, GgmlRounded
from benchmarks.report import emit, output_options, print_table
from benchmarks.shapes import SHAPES
from engine_core.attention.base import AttentionBackend, AttentionMetadata
from engine_core.attention.native import NativeAttention
from engine_core.attention.torch_reference import TorchAttention
from engine_core.config import LoadConfig, ModelConfig
from engine_core.forward_context import ForwardContext
from engine_core.kernels.library import load_int8_kernels, load_kernels
from engine_core.model_loader.checkpoint import Checkpoint, open_checkpoint
from engine_core.model_loader.loader import load_weights, make_model
from engine_core.models.language_model import LanguageModel
from engine_core.ops.base import LinearOp, OpsBackend
from engine_core.ops.int8_activations import Int8Activations
from engine_core.ops.native import NativeBackend
from engine_core.ops.torch import TorchBackend
from engine_core.quantization.base import OneMethod, QuantMethod, Unquantized, take_bias, take_weight
from engine_core.quantization.int4 import Int4
from engine_core.quantization.int8 import Int8, Int8Linear
from engine_core.weights.features import LinearShape
from engine_core.weights.source import Weights

CPU = torch.device("cpu")
BUNDLED = Path(__file__).resolve().parents[1] / "checkpoints" / "tiny"
_BLOCK_SIZE = 16
_TEXT_TOKENS = 128
_UNSEEN_SEED = 1_000_003
"""The corpus depends only on its seed; the bundled model was trained with another one."""


@dataclass(frozen=True, slots=True)
class Way:
    """A weight format to compare."""

    name: str
    dtype: str
    quant_method: QuantMethod | None
    cache_dtype: str | None = None
    """Of the KV cache, with native attention; None: torch computes attention, with a cache of the model's type."""


class Int8WeightsOnly(QuantMethod):
    """Rounds weights to 8 bits, but not inputs."""

    def weight_bytes(self, shape: LinearShape, itemsize: int) -> int:
        return Int8(None).weight_bytes(shape, itemsize)

    def load(self, shape: LinearShape, weights: Weights, backend: OpsBackend) -> LinearOp:
        bias = take_bias(shape, weights, backend)
        rounded = Int8Linear(take_weight(shape, weights, backend), None, load_int8_kernels())
        return backend.linear(rounded.weight_rows(torch.arange(rounded.out_features)), bias)


class Int8ButHead(Int8):
    """Rounds everything except the output projection."""

    def load(self, shape: LinearShape, weights: Weights, backend: OpsBackend) -> LinearOp:
        if shape.outputs.fixed:
            return Unquantized().load(shape, weights, backend)
        return super().load(shape, weights, backend)


class Int4ButHead(Int4):
    """Rounds the output projection to 8 bits, but not its inputs."""

    def load(self, shape: LinearShape, weights: Weights, backend: OpsBackend) -> LinearOp:
        return (
            Int8WeightsOnly().load(shape, weights, backend)
            if shape.outputs.fixed
            else super().load(shape, weights, backend)
        )


class Int4RoundedInputs(Int4):
    """As --int8-activations computes it."""

    def load(self, shape: LinearShape, weights: Weights, backend: OpsBackend) -> LinearOp:
        rounding = Int8Activations(load_int8_kernels())
        return super().load(shape, weights, NativeBackend(load_kernels(), rounding))


def ways(ggml: GgmlLibrary | None = None) -> list[Way]:
    """The reference, then the formats to compare with it."""
    kernels = load_kernels()
    of_llama_cpp = [gguf.GGMLQuantizationType[name] for name in ("Q4_0", "Q4_1", "Q4_K", "IQ4_NL", "Q8_0")]
    return [
        Way("bfloat16", "bfloat16", None),
        Way("float32", "float32", None),
        Way("int8 weights alone", "bfloat16", Int8WeightsOnly()),
        Way("int8, output projection in bfloat16", "bfloat16", Int8ButHead(load_int8_kernels())),
        Way("int8", "bfloat16", Int8(load_int8_kernels())),
        *(Way(f"KV cache {kept}, native attention", "bfloat16", None, kept) for kept in ("auto", "int8", "fp8")),
        *(Way(f"int4 in groups of {size}", "bfloat16", Int4(size, kernels)) for size in (32, 64, 128)),
        Way("int4 in groups of 32, inputs in int8", "bfloat16", Int4RoundedInputs(32, kernels)),
        Way("int4 in groups of 32, output projection in int8", "bfloat16", Int4ButHead(32, kernels)),
        *(
            Way(f"llama.cpp's {kind.name}", "bfloat16", GgmlRounded(ggml, kind))
            for kind in of_llama_cpp
            if ggml is not None
        ),
    ]


def compare(
    title: str, open_as: Callable[[str], Checkpoint], texts: Sequence[list[int]], compared: Sequence[Way]
) -> list[dict[str, str | float | int]]:
    """A row for each of the ways ``compared``, whose first one is the reference."""
    reference: list[torch.Tensor] = []
    rows: list[dict[str, str | float | int]] = []
    for way in compared:
        found = log_probabilities(open_as(way.dtype), way.quant_method, texts, way.cache_dtype)
        reference = reference or found
        divergences, same, losses = [], [], []
        for expected, actual, text in zip(reference, found, texts, strict=True):
            divergences.append((expected.exp() * (expected - actual)).sum(1))
            same.append(expected.argmax(1) == actual.argmax(1))
            losses.append(-actual[:-1].gather(1, torch.tensor(text[1:])[:, None]))
        divergence, agreement = torch.cat(divergences), torch.cat(same).double()
        rows.append(
            {
                "model": title,
                "weights": way.name,
                "positions": len(divergence),
                "KL mean, mnat": 1000 * divergence.mean().clamp(min=0).item(),
                "KL p99, mnat": 1000 * divergence.quantile(0.99).clamp(min=0).item(),
                "top-1 %": 100 * agreement.mean().item(),
                "perplexity": torch.cat(losses).mean().exp().item(),
            }
        )
    return rows


@torch.inference_mode()
def log_probabilities(
    checkpoint: Checkpoint, quant_method: QuantMethod | None, texts: Sequence[list[int]], cache_dtype: str | None = None
) -> list[torch.Tensor]:
    """Log probabilities [T, V] of the token after each position, for each text separately."""
    attention: AttentionBackend
    attention = TorchAttention() if cache_dtype is None else NativeAttention(load_kernels(), cache_dtype)
    layers = TorchBackend()
    quantization = None if quant_method is None else OneMethod(quant_method)
    model = make_model(checkpoint, attention, layers, CPU, quantization)
    load_weights(model, checkpoint, CPU)
    blocks = -(-max(map(len, texts)) // _BLOCK_SIZE)
    caches = attention.allocate(model.kv_cache_spec(_BLOCK_SIZE), blocks, CPU)
    return [torch.log_softmax(_logits(model, caches, text, blocks), dim=1) for text in texts]


def _logits(model: LanguageModel, caches: list[torch.Tensor], text: list[int], blocks: int) -> torch.Tensor:
    """Logits [T, V] of one text, computed in one step."""
    positions = torch.arange(len(text))
    table = torch.arange(blocks, dtype=torch.int32)[None]
    metadata = AttentionMetadata.of_sequences([len(text)], [len(text)], table, _BLOCK_SIZE)
    # A layer reads only data that it has written in this step, so groups can share blocks.
    every_group = [metadata] * len(model.kv_cache_groups)
    return model.compute_logits(model.forward(torch.tensor(text), positions, ForwardContext(caches, every_group)))


def corpus_texts(count: int) -> list[list[int]]:
    """Documents of the bundled model's corpus, with seeds that it was not trained on."""
    sys.path.insert(0, str(BUNDLED))
    from corpus import document
    from tokenization import render

    tokenizer = PreTrainedTokenizerFast.from_pretrained(BUNDLED)
    texts = (render(tokenizer, document(_UNSEEN_SEED, index)) for index in range(count))
    return [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]


def pieces_of(files: Sequence[str], model: str, count: int) -> list[list[int]]:
    """The first tokens of each of the ``files``, at most ``count`` pieces."""
    tokenizer = PreTrainedTokenizerFast.from_pretrained(model)
    tokens = (tokenizer(Path(file).read_text(), add_special_tokens=False)["input_ids"] for file in files[:count])
    return [each[:_TEXT_TOKENS] for each in tokens]


def measure(
    documents: int,
    *,
    random: bool,
    compared: Sequence[Way],
    model: str | None = None,
    files: Sequence[str] = (),
) -> list[dict[str, str | float | int]]:
    """The rows of a ``model`` on ``files``, if given; else for both models, or for the bundled one alone."""
    texts = corpus_texts(documents) if model is None else pieces_of(files, model, documents)
    title, path = ("bundled", str(BUNDLED)) if model is None else (Path(model).name, model)
    rows = compare(title, lambda dtype: open_checkpoint(ModelConfig(path, dtype=dtype), LoadConfig()), texts, compared)
    if not random:
        return rows
    shape = "qwen3-0.6b"
    with tempfile.TemporaryDirectory() as directory:
        config = SHAPES[shape]()
        config.architectures = ["Qwen3ForCausalLM"]
        config.save_pretrained(directory)
        generator = torch.Generator().manual_seed(0)
        texts = torch.randint(0, config.vocab_size, (4, 96), generator=generator).tolist()
        return rows + compare(
            f"random {shape}",
            lambda dtype: open_checkpoint(ModelConfig(directory, dtype=dtype), LoadConfig(load_format="dummy")),
            texts,
            compared,
        )


def main() -> None:
    """Measure, print, and write the JSON file if requested."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--documents", type=int, default=200, help="of the bundled model's corpus, or files (%(default)s)"
    )
    parser.add_argument("--model", help="measure this checkpoint instead")
    parser.add_argument("--text", nargs="+", default=[], help="files of text for it")
    parser.add_argument("--ggml", type=Path, help="libggml-base.so, of llama-cpp-python for one")
    parser.add_argument("--skip-random", action="store_true", help="measure the bundled model alone")
    output_options(parser)
    arguments = parser.parse_args()
    if bool(arguments.model) != bool(arguments.text):
        parser.error("--model and --text belong together")
    rows = measure(
        arguments.documents,
        random=not (arguments.skip_random or arguments.model),
        compared=ways(None if arguments.ggml is None else GgmlLibrary(arguments.ggml)),
        model=arguments.model,
        files=arguments.text,
    )
    print_table(rows)
    emit(arguments, "quality", rows)


if __name__ == "__main__":
    main()
