"""Parts: single layers beside what the libraries at hand make of the same work."""

from __future__ import annotations

import copy
import importlib
import importlib.util
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import torch

from benchmarks.attention_steps import BLOCK_SIZE, AttentionStep
from benchmarks.gpu.goals import GOALS
from benchmarks.gpu.place import Place
from benchmarks.report import Row
from engine_core.attention.base import AttentionBackend, AttentionOptions, KVCacheSpec
from engine_core.attention.flash_attention import PAGE, FlashAttention, varlen_function
from engine_core.attention.triton import TritonAttention
from engine_core.kv_cache_interface import AttentionSpec
from engine_core.ops.base import LinearOp
from engine_core.ops.gpu import GpuBackend
from engine_core.weights.quantized_weight import FP8, SIGNED4, QuantFormat, QuantizedWeight

_UNCACHED_BYTES = 256 << 20
"""Weights rotate over as many bytes, several times a GPU's cache."""
_FORMATS = {
    "w4a16": QuantFormat(SIGNED4, 128, torch.float16),
    "fp8": QuantFormat(FP8, 128, torch.float32),
}
_HEADS, _KV_HEADS, _HEAD_DIM = 32, 8, 128


def quantized(place: Place) -> Iterator[Row]:
    """Layers of 8B whose weights stay quantized, beside cuBLAS in bfloat16, by the number of rows."""
    _prepare(place)
    backend = GpuBackend(place.processors, False, place.torch_device)
    for name, kept in _FORMATS.items():
        gains: dict[str, float] = {}
        for outputs, inputs in _shapes(place)[:3]:
            weight = _random_weight(kept, outputs, inputs)  # on the host, which takes a second
            ours = backend.quantized_linear(kept, outputs, inputs, torch.bfloat16, [weight])
            library = backend.linear(_numbers(place, outputs, inputs))
            for rows in _rows(place):
                x = _numbers(place, rows, inputs)
                theirs = _seconds(place, library, _library_bytes(outputs, inputs), x)
                gains[f"{rows} × {outputs} × {inputs}"] = theirs / _seconds(place, ours, ours.nbytes, x)
        one_row = [gain for shape, gain in gains.items() if shape.startswith("1 ×")]
        yield GOALS[name].reached(min(one_row), **gains)


def _prepare(place: Place) -> None:
    """In a rehearsal an interpreter runs the kernels, as it does in tests."""
    if not place.is_gpu:
        import pytest

        from tests.engine_core.kernels.interpreted_device import mend_interpreter

        mend_interpreter(pytest.MonkeyPatch())


def _library_bytes(outputs: int, inputs: int) -> int:
    """Bytes of a weight in bfloat16."""
    return 2 * outputs * inputs


def _shapes(place: Place) -> list[tuple[int, int]]:
    """Outputs and inputs of the layers of 8B: queries, keys and values; their output; gate and up; down; the head."""
    width = place.scale.width
    whole = [(6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336), (128256, 4096)]
    return whole if place.is_gpu else [(width, width), (2 * width, width)]


def _rows(place: Place) -> Sequence[int]:
    return (1, 64, 2048) if place.is_gpu else (1, 4)


def _numbers(place: Place, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, device=place.torch_device, dtype=torch.bfloat16)


def _random_weight(kept: QuantFormat, outputs: int, inputs: int) -> QuantizedWeight:
    finite = torch.tensor(kept.codebook).isfinite().nonzero().flatten().to(torch.uint8)
    codes = finite[torch.randint(0, len(finite), (outputs, inputs))]
    scales = torch.rand(outputs, -(-inputs // kept.group_size)).to(kept.scale_dtype)
    return QuantizedWeight(kept, codes, scales)


def _seconds(place: Place, layer: LinearOp, nbytes: int, x: torch.Tensor) -> float:
    """Seconds of one call, with a weight that comes from memory: other bytes are read before each."""
    copies = max(1, _UNCACHED_BYTES // nbytes) if place.is_gpu else 1
    layers = [layer, *(copy.deepcopy(layer) for _ in range(copies - 1))]

    def run() -> None:
        for one in layers:
            one(x)

    return place.seconds_of(run) / copies


def peers(place: Place) -> Iterator[Row]:
    """Attention and products of our own beside those of libraries that can be imported here."""
    _prepare(place)
    yield from _attention_beside(place)
    yield _products(place)


def _products(place: Place) -> Row:
    ratios: dict[str, float] = {}
    for (outputs, inputs), rows in itertools.product(_shapes(place), _rows(place)):
        weight, x = _numbers(place, outputs, inputs), _numbers(place, rows, inputs)
        own, library = (GpuBackend(place.processors, way, place.torch_device).linear(weight) for way in (True, False))
        theirs, ours = (_seconds(place, layer, _library_bytes(outputs, inputs), x) for layer in (library, own))
        ratios[f"{rows} × {outputs} × {inputs}"] = theirs / ours
    return GOALS["products"].reached(min(ratios.values()), **ratios)


def _attention_beside(place: Place) -> Iterator[Row]:
    steps = {"attention-decode": AttentionStep(64, 1, 2048), "attention-prompt": AttentionStep(1, 4096, 4096)}
    if not place.is_gpu:
        steps = {"attention-decode": AttentionStep(2, 1, 64), "attention-prompt": AttentionStep(1, 32, 32)}
    for name, step in steps.items():
        inputs = [_numbers(place, step.rows, heads, _HEAD_DIM) for heads in (_HEADS, _KV_HEADS, _KV_HEADS)]
        ours = _attend(place, TritonAttention(8192, place.processors, False), step, inputs, BLOCK_SIZE)
        theirs = {name: _tried(name, partial(made, place, step, inputs)) for name, made in _LIBRARIES.items()}
        known = {library: 1e3 * seconds for library, seconds in theirs.items() if seconds is not None}
        extra = {"ms": 1e3 * ours} | {f"{library} ms": taken for library, taken in known.items()}
        yield GOALS[name].reached(min(known.values()) / (1e3 * ours), **extra)


def _tried(name: str, measure: Callable[[], float | None]) -> float | None:
    """The seconds of a library; None if it is not here, or fails, as one does that needs a compiler to be found."""
    try:
        return measure()
    except Exception as error:  # whatever a library does that nothing here depends on
        print(f"{name} is left out: {type(error).__name__}: {error}", flush=True)
        return None


def _attend(
    place: Place, backend: AttentionBackend, step: AttentionStep, inputs: Sequence[torch.Tensor], block_size: int
) -> float:
    """Seconds of a step, with keys and values in blocks of ``block_size``."""
    spec = KVCacheSpec((AttentionSpec(_KV_HEADS, _HEAD_DIM),), block_size, torch.bfloat16)
    [cache] = backend.allocate(spec, step.sequences * -(-step.context // block_size), place.torch_device)
    cache.normal_()
    on_host = step.metadata()
    width = -(-step.context // block_size)
    tables = torch.arange(step.sequences * width, dtype=torch.int32).view(step.sequences, width)
    positions = torch.arange(step.context - step.new, step.context)
    slots = tables.long()[:, positions // block_size] * block_size + positions % block_size
    on_host = replace(on_host, block_tables=tables, slot_mapping=slots.flatten())
    backend.plan(on_host)
    metadata = on_host.on(place.torch_device)
    query, key, value = inputs
    options = AttentionOptions(_HEAD_DIM**-0.5)
    return place.seconds_of(lambda: backend.forward(query, key, value, cache, metadata, options))


def _flashinfer(place: Place, step: AttentionStep, inputs: Sequence[torch.Tensor]) -> float | None:
    if not place.is_gpu or importlib.util.find_spec("flashinfer") is None:
        return None
    from engine_core.attention.flashinfer import FlashInferAttention, HeadsOfModel

    heads, pages = HeadsOfModel(_HEADS, _KV_HEADS, _HEAD_DIM, torch.bfloat16), -(-step.context // BLOCK_SIZE)
    backend = FlashInferAttention(importlib.import_module("flashinfer"), heads, BLOCK_SIZE, pages, place.torch_device)
    return _attend(place, backend, step, inputs, BLOCK_SIZE)


def _varlen(place: Place, step: AttentionStep, inputs: Sequence[torch.Tensor]) -> float | None:
    function = varlen_function()
    if not place.is_gpu or function is None:
        return None
    return _attend(place, FlashAttention(function), step, inputs, PAGE)


def _sdpa(place: Place, step: AttentionStep, inputs: Sequence[torch.Tensor]) -> float:
    """Attention by torch itself, over keys and values that lie side by side: what pages are to be compared with."""
    shape = (step.sequences, step.context, _KV_HEADS, _HEAD_DIM)
    query = inputs[0].view(step.sequences, step.new, _HEADS, _HEAD_DIM).transpose(1, 2)
    key, value = (_numbers(place, *shape).transpose(1, 2) for _ in range(2))
    attend: Callable[..., torch.Tensor] = torch.nn.functional.scaled_dot_product_attention
    return place.seconds_of(partial(attend, query, key, value, is_causal=step.new > 1, enable_gqa=True))


_LIBRARIES: dict[str, Callable[[Place, AttentionStep, Sequence[torch.Tensor]], float | None]] = {
    "flashinfer": _flashinfer,
    "varlen": _varlen,
    "sdpa": _sdpa,
}
