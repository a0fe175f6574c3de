"""Reads LoRA adapters in PEFT's format: a directory with ``adapter_config.json`` and ``adapter_model.safetensors``.

Read ``peft_config`` (what is honoured), ``targets`` (what of a model takes adapters), ``files`` (what may be wrong with
files) and ``layout`` (what each tensor is for) first.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch

from engine_core.errors import AdapterError
from engine_core.lora.files import WEIGHTS, StoredTensor, TensorFile, open_tensors, read_config
from engine_core.lora.layout import ExpertPlace, Layout, LinearPlace, Pair, StackedPlace, lay_out
from engine_core.lora.peft_config import read_peft_config
from engine_core.lora.targets import LoRALimits, LoRATargets, Projection, Table


@dataclass(frozen=True, slots=True, eq=False)
class LoRAMatrices:
    """What is added to y = x · Wᵀ: scaling · (x · Aᵀ) · Bᵀ."""

    a: torch.Tensor
    """[r, K], in the file's type, as ``b``."""
    b: torch.Tensor
    """[N, r]"""
    scaling: float

    @property
    def rank(self) -> int:
        return len(self.a)


ExpertMatrices = dict[Projection, LoRAMatrices]
"""Of one expert. Gate and up from one parameter share their A: ``matrices[GATE].a is matrices[UP].a``."""


@dataclass(frozen=True, slots=True)
class AdapterFile:
    """An adapter that has been read and found sound."""

    digest: str
    """SHA-256 over all tensors and their scalings, under the model's names: equal digests add the same to the model."""
    nbytes: int
    """About, when packed: in the model's type, with each place's ranks in units of 16."""
    rank: int
    """The largest; 0: it replaces weights alone."""
    base_model: str
    """What its configuration says, which may be empty or wrong."""


@dataclass(frozen=True, slots=True, eq=False)
class Adapter:
    """An adapter's tensors, all of them finite in the model's type."""

    file: AdapterFile
    linear: dict[str, LoRAMatrices] = field(default_factory=dict)
    """By the names of ``LoRATargets.linear``."""
    experts: dict[str, dict[int, ExpertMatrices]] = field(default_factory=dict)
    """By prefix and expert; of those that the adapter has."""
    tables: dict[Table, LoRAMatrices] = field(default_factory=dict)
    """Of the head, as of a linear layer: A [r, width] and B [rows, r]. Of the embedding: A [r, rows] and B [width, r];
    scaling · B · A's column of a token is added to its embedding, before any factor that the model has for embeddings.
    """
    saved: dict[Table, torch.Tensor] = field(default_factory=dict)
    """[rows, width] in place of the base's; what ``tables`` has is added to it."""


def open_adapter(directory: Path, targets: LoRATargets, limits: LoRALimits) -> AdapterFile:
    """Check all of an adapter, and keep no tensors. Raises ``AdapterError``."""
    return _read(directory, targets, limits, lambda name, tensor: None)[0]


def read_adapter(directory: Path, targets: LoRATargets, limits: LoRALimits) -> Adapter:
    """Check and read an adapter, whose files may be others than ``open_adapter`` saw: compare digests.

    Raises ``AdapterError``.
    """
    tensors: dict[str, torch.Tensor] = {}
    file, layout = _read(directory, targets, limits, tensors.__setitem__)
    adapter = Adapter(file, saved={each.table: tensors[each.tensor.name] for each in layout.saved})
    for pair in layout.pairs:
        _place(adapter, pair, tensors[pair.a.name], tensors[pair.b.name])
    return adapter


def _read(
    directory: Path, targets: LoRATargets, limits: LoRALimits, keep: Callable[[str, torch.Tensor], None]
) -> tuple[AdapterFile, Layout]:
    """``keep`` gets each tensor by its name in the file."""
    try:
        config = read_peft_config(read_config(directory))
        with open_tensors(directory, targets.most_tensors) as file:
            layout = lay_out(file.tensors, config, targets)
            nbytes = _check_limits(layout, targets, limits)
            digest = _digest(file, layout, targets, keep)
    except AdapterError as error:
        raise AdapterError(f"{directory}: {error}") from error
    return AdapterFile(digest, nbytes, layout.rank, config.base_model), layout


def _check_limits(layout: Layout, targets: LoRATargets, limits: LoRALimits) -> int:
    """The adapter's size in bytes. Raises ``AdapterError``."""
    if layout.rank > limits.max_lora_rank:
        raise AdapterError(
            f"it has matrices of rank {layout.rank}, above the limit of {limits.max_lora_rank}: start the engine with "
            f"--max-lora-rank {layout.rank}"
        )
    if (nbytes := layout.num_numbers * _dtype(targets).itemsize) > limits.max_bytes:
        raise AdapterError(
            f"it needs {nbytes} bytes, above the limit of {limits.max_bytes} for adapters: give the engine more memory "
            "for them (--max-cpu-loras, --max-lora-rank), or train it with a lower rank or for fewer layers"
        )
    return nbytes


def _dtype(targets: LoRATargets) -> torch.dtype:
    dtype: torch.dtype = getattr(torch, targets.dtype)
    return dtype


def _digest(file: TensorFile, layout: Layout, targets: LoRATargets, keep: Callable[[str, torch.Tensor], None]) -> str:
    """Read all tensors that are used; the digest is the same in whichever order they are, and under whichever names."""
    meanings = {tensor.name: meaning for tensor, meaning in _meanings(layout)}
    dtype = _dtype(targets)
    digests = []
    for tensor in file.tensors:
        if tensor.name not in meanings:  # what is added to a layer that no result depends on
            continue
        numbers, content = file.read(tensor)
        _check_numbers(tensor, numbers, dtype)
        meaning = json.dumps([*meanings[tensor.name], str(tensor.dtype), *tensor.shape])
        hashed = hashlib.sha256(meaning.encode() + b"\0")
        hashed.update(content)
        digests.append(hashed.digest())
        keep(tensor.name, numbers)
    return hashlib.sha256(b"".join(sorted(digests))).hexdigest()


def _meanings(layout: Layout) -> Iterator[tuple[StoredTensor, tuple[str, ...]]]:
    """What each tensor is: the model's name, which of the place's tensors, and how it is taken."""
    for each in layout.saved:
        yield each.tensor, (each.name, "weight")
    for pair in layout.pairs:
        flipped = isinstance(pair.place, StackedPlace) and pair.place.flipped
        for tensor, role in ((pair.a, "lora_A"), (pair.b, "lora_B")):
            yield tensor, (pair.name, role, "flipped" if flipped else "", pair.scale.scaling.hex())


def _check_numbers(tensor: StoredTensor, numbers: torch.Tensor, dtype: torch.dtype) -> None:
    low, high = (float(each) for each in torch.aminmax(numbers))
    largest = torch.finfo(dtype).max
    if not (-largest <= low and high <= largest):  # with a NaN, both are NaN
        found = f"{low if abs(low) > abs(high) else high:g}"
        name = str(dtype).removeprefix("torch.")
        raise AdapterError(
            f"{tensor.name!r:.200} in {WEIGHTS} has a number ({found}) that is not finite in the model's {name}: its "
            "training has failed, or the file is damaged"
        )


def _place(adapter: Adapter, pair: Pair, a: torch.Tensor, b: torch.Tensor) -> None:
    matrices = LoRAMatrices(a, b, pair.scale.scaling)
    match pair.place:
        case LinearPlace(name):
            adapter.linear[name] = matrices
        case Table() as table:
            adapter.tables[table] = matrices
        case ExpertPlace(prefix, expert, projection):
            adapter.experts.setdefault(prefix, {}).setdefault(expert, {})[projection] = matrices
        case StackedPlace(prefix) as place:
            of_layer = adapter.experts.setdefault(prefix, {})
            for expert, of_expert in enumerate(_experts(place, matrices)):
                of_layer.setdefault(expert, {}).update(of_expert)


def _experts(place: StackedPlace, matrices: LoRAMatrices) -> Iterator[ExpertMatrices]:
    """The matrices of each expert, in order: A has an expert's ranks side by side; in B, experts alternate."""
    experts = place.target
    rank = len(matrices.a) // experts.num_experts
    of_a = matrices.a.view(experts.num_experts, rank, -1)
    of_b = matrices.b.view(len(matrices.b), rank, experts.num_experts).permute(2, 0, 1)
    for first, second in zip(of_a, of_b, strict=True):
        a, b = (second.T, first.T) if place.flipped else (first, second)
        if place.projection is Projection.DOWN or experts.gate is None:
            yield {place.projection: LoRAMatrices(a, b, matrices.scaling)}
            continue
        gate, up = (b[::2], b[1::2]) if experts.interleaved else b.chunk(2)
        yield {
            Projection.GATE: LoRAMatrices(a, gate, matrices.scaling),
            Projection.UP: LoRAMatrices(a, up, matrices.scaling),
        }
