"""What the tensors of an adapter's file are for: found by their names, and checked against the model's shapes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from engine_core.errors import AdapterError
from engine_core.lora.files import WEIGHTS, StoredTensor
from engine_core.lora.peft_config import CONFIG, MERGE, LayerScale, LayerScales, PEFTConfig
from engine_core.lora.targets import ExpertsTarget, LinearTarget, LoRATargets, Projection, Table

_NAME = re.compile(
    r"base_model\.model\.(?P<module>.+?)(?P<inner>(?:\.base_layer)*)\."
    r"(?:lora_(?P<matrix>[AB])(?:\.default)?\.weight|lora_embedding_(?P<table>[AB])(?:\.default)?"
    r"|(?P<saved>(?:modules_to_save\.(?:default\.)?)?weight))"
)
_LONGEST_NAME = 512
_INDEX = re.compile("0|[1-9][0-9]{0,5}")
_SWAPS = (0, 20)
"""The first version of PEFT that surely takes the last dimension of experts' parameters for their inputs, if their
module does not say otherwise; from (0, 19) some did.
"""
_MOST_NAMES = 4
"""Of what there is, in messages."""


@dataclass(frozen=True, slots=True)
class LinearPlace:
    """A linear layer."""

    name: str


@dataclass(frozen=True, slots=True)
class ExpertPlace:
    """A projection of one expert."""

    prefix: str
    expert: int
    projection: Projection


@dataclass(frozen=True, slots=True)
class StackedPlace:
    """A parameter with a projection of all experts, or with gates and ups."""

    prefix: str
    target: ExpertsTarget
    projection: Projection
    """Of gates and ups: ``UP``."""
    flipped: bool
    """Whether A is over the outputs, and B over the inputs."""


Place = LinearPlace | ExpertPlace | StackedPlace | Table


@dataclass(frozen=True, slots=True)
class Pair:
    """The two matrices for one place; of stacked experts [E · r, K] and [N, r · E]."""

    place: Place
    name: str
    """The checkpoint's, of the place."""
    a: StoredTensor
    b: StoredTensor
    scale: LayerScale

    @property
    def per_rank(self) -> int:
        """Numbers that each rank has."""
        return (self.a.shape[0] * self.a.shape[1] + self.b.shape[0] * self.b.shape[1]) // self.scale.rank


@dataclass(frozen=True, slots=True)
class Saved:
    """Weights in place of the base's."""

    table: Table
    name: str
    tensor: StoredTensor


@dataclass(frozen=True, slots=True)
class Layout:
    """All of a file's tensors."""

    pairs: tuple[Pair, ...]
    saved: tuple[Saved, ...]
    embedding_copies: int = 1

    @property
    def rank(self) -> int:
        """The largest."""
        return max((pair.scale.rank for pair in self.pairs), default=0)

    @property
    def num_numbers(self) -> int:
        """As loaded: with ranks in units of 16, as many for each of a layer's experts, and every copy of what changes
        the embedding.
        """
        copies = self.embedding_copies
        numbers = sum(
            each.tensor.shape[0] * each.tensor.shape[1] * (copies if each.table is Table.EMBEDDING else 1)
            for each in self.saved
        )
        products: dict[tuple[str, bool], list[tuple[Projection, int, Pair]]] = {}
        for pair in self.pairs:
            match pair.place:
                case ExpertPlace(prefix, expert, projection):
                    of_product = products.setdefault((prefix, projection is Projection.DOWN), [])
                    of_product.append((projection, expert, pair))
                case Table.EMBEDDING:  # which is float32
                    numbers += copies * 2 * pair.per_rank * _filled(pair.scale.rank)
                case _:
                    numbers += pair.per_rank * _filled(pair.scale.rank)
        return numbers + sum(map(_numbers_of_experts, products.values()))


def _filled(rank: int) -> int:
    return -(-rank // 16) * 16


def _numbers_of_experts(pairs: list[tuple[Projection, int, Pair]]) -> int:
    """Of a product: each expert that has anything has the most ranks of each projection."""
    most: dict[Projection, int] = {}
    for projection, _, pair in pairs:
        most[projection] = max(most.get(projection, 0), pair.per_rank * _filled(pair.scale.rank))
    return len({expert for _, expert, _ in pairs}) * sum(most.values())


@dataclass(frozen=True, slots=True)
class _Module:
    """The module of a tensor, as PEFT names it."""

    name: str
    inner: int
    """How often it is wrapped further out: once, if its module has two parameters with matrices, for the first."""
    is_table: bool
    """Whether its matrices are those of an embedding."""


def lay_out(tensors: Iterable[StoredTensor], config: PEFTConfig, targets: LoRATargets) -> Layout:
    """What each of ``tensors`` is for. Raises ``AdapterError`` naming one that is for nothing here, or does not fit."""
    return _Reader(config, targets).layout(tensors)


class _Reader:
    def __init__(self, config: PEFTConfig, targets: LoRATargets) -> None:
        self._config = config
        self._targets = targets
        self._scales = LayerScales(config)
        self._tables = {
            target.name: (table, target)
            for table, target in ((Table.EMBEDDING, targets.embedding), (Table.HEAD, targets.head))
            if target is not None
        }
        self._stacks: dict[str, list[tuple[str, str, ExpertsTarget, Projection]]] = {}
        """By module: its parameters, in the order in which PEFT wraps them: name, prefix and projection of each."""
        for prefix, experts in targets.experts.items():
            for name, projection in ((experts.stacked_up, Projection.UP), (experts.stacked_down, Projection.DOWN)):
                module, _, parameter = f"{prefix}.{name}".rpartition(".")
                self._stacks.setdefault(module, []).append((parameter, prefix, experts, projection))

    def layout(self, tensors: Iterable[StoredTensor]) -> Layout:
        matrices: dict[_Module, dict[str, StoredTensor]] = {}
        saved: dict[Table, Saved] = {}
        for tensor in tensors:
            module, role = _parse(tensor.name)
            if role == "saved":
                found = self._saved(tensor, module)
                if (other := saved.setdefault(found.table, found)) is not found:
                    raise _twice(other.tensor, tensor)
            elif (first := matrices.setdefault(module, {}).setdefault(role, tensor)) is not tensor:
                raise _twice(first, tensor)
        pairs: dict[str, Pair] = {}
        for module, both in matrices.items():
            if self._is_unused(module):
                continue
            pair = self._pair(module, both)
            if (same := pairs.setdefault(pair.name, pair)) is not pair:
                raise _twice(same.a, pair.a)
        self._check_experts(pairs.values())
        if not pairs and not saved:
            if matrices:
                name = next(iter(matrices)).name
                raise AdapterError(f"{WEIGHTS} adds to {name!r:.200} alone, which no result depends on: serve the base")
            raise AdapterError(f"{WEIGHTS} has no tensors: save the adapter again")
        self._check_saved(saved)
        return Layout(tuple(pairs.values()), tuple(saved.values()), self._targets.embedding_copies)

    @staticmethod
    def _check_experts(pairs: Iterable[Pair]) -> None:
        """Refuse matrices for experts one by one beside those for all together."""
        stacked = {pair.place.prefix: pair for pair in pairs if isinstance(pair.place, StackedPlace)}
        for pair in pairs:
            if isinstance(pair.place, ExpertPlace) and (other := stacked.get(pair.place.prefix)) is not None:
                raise _twice(other.a, pair.a)

    def _check_saved(self, saved: dict[Table, Saved]) -> None:
        """Refuse an adapter whose own head or embedding has been lost."""
        for name, (table, _) in self._tables.items():
            ends = {name.rpartition(".")[2], name}
            if table not in saved and (lost := ends.intersection(self._config.modules_to_save)):
                problem = f"{CONFIG} has {min(lost)!r} in modules_to_save, and {WEIGHTS} has no tensor of it"
                raise AdapterError(f"{problem}: save the adapter again")

    def _own_name(self, tensor: StoredTensor, module: _Module) -> str:
        """The checkpoint's name of a module."""
        name = self._targets.rename(module.name)
        if (name is None or not self._is_known(name)) and (prefix := self._targets.prefix):
            below = self._targets.rename(f"{prefix}.{module.name}")
            name = below if below is not None and self._is_known(below) else name
        if name is None:
            raise AdapterError(
                f"{tensor.name!r:.200} is for a part outside of the language model, and only that takes adapters: "
                "train the adapter without it (exclude_modules)"
            )
        return name

    def _is_unused(self, module: _Module) -> bool:
        name = self._targets.rename(module.name)
        return name is not None and name.startswith(self._targets.unused) and not self._is_known(name)

    def _is_known(self, name: str) -> bool:
        targets = self._targets
        return (
            name in targets.linear
            or name in self._tables
            or name in self._stacks
            or name.rsplit(".", 2)[0] in targets.experts
        )

    def _saved(self, tensor: StoredTensor, module: _Module) -> Saved:
        name = self._own_name(tensor, module)
        if name not in self._tables or module.inner > 1:
            there = ", ".join(self._tables) or "none"
            raise AdapterError(
                f"{tensor.name!r:.200} replaces weights that adapters may not replace; expected modules_to_save of "
                f"embedding and head alone ({there}): {MERGE}"
            )
        table, target = self._tables[name]
        expected = target.rows, target.width
        if len(tensor.shape) != 2 or 0 in tensor.shape:
            raise _misshaped(tensor, expected)
        if tensor.shape != expected:
            raise self._other_base(tensor, expected, name)
        return Saved(table, name, tensor)

    def _pair(self, module: _Module, both: dict[str, StoredTensor]) -> Pair:
        first = next(iter(both.values()))
        if len(both) < 2:
            raise AdapterError(f"{WEIGHTS} has {first.name!r:.200} alone: the other of lora_A and lora_B is missing")
        name = self._own_name(first, module)
        if module.is_table:
            return self._embedding_pair(name, module, both)
        if (stacks := self._stacks.get(name)) is not None and name not in self._targets.linear:
            return self._stacked_pair(stacks, module, both)
        place, shape = self._linear(name, first)
        if module.inner:
            raise self._unknown(first, name)
        weight = f"{module.name}.weight"
        scale = self._scales.of(weight if self._config.targets_parameter(weight) else module.name)
        return self._checked(place, name, both, scale, shape)

    def _linear(self, name: str, tensor: StoredTensor) -> tuple[Place, LinearTarget]:
        if (shape := self._targets.linear.get(name)) is not None:
            return LinearPlace(name), shape
        table, target = self._tables.get(name, (None, None))
        if table is Table.HEAD and target is not None:
            return table, LinearTarget(target.rows, target.width)
        prefix, expert, projection = (*name.rsplit(".", 2), "", "")[:3]
        experts = self._targets.experts.get(prefix)
        found = None if experts is None else experts.named(projection)
        if experts is None or found is None or not _INDEX.fullmatch(expert) or int(expert) >= experts.num_experts:
            raise self._unknown(tensor, name)
        return ExpertPlace(prefix, int(expert), found), experts.shape_of(found)

    def _embedding_pair(self, name: str, module: _Module, both: dict[str, StoredTensor]) -> Pair:
        table, target = self._tables.get(name, (None, None))
        if table is not Table.EMBEDDING or target is None or module.inner:
            raise self._unknown(both["A"], name)
        return self._checked(table, name, both, self._scales.of(module.name), LinearTarget(target.width, target.rows))

    def _stacked_pair(
        self, stacks: list[tuple[str, str, ExpertsTarget, Projection]], module: _Module, both: dict[str, StoredTensor]
    ) -> Pair:
        """Each wrapper of PEFT's has the matrices of one parameter: the innermost those of the first one."""
        wrapped = [each for each in stacks if self._config.targets_parameter(f"{module.name}.{each[0]}")]
        if module.inner >= len(wrapped):
            names = ", ".join(f"{module.name}.{each[0]}" for each in stacks)
            raise AdapterError(
                f"{both['A'].name!r:.200} is for a parameter of {module.name}, but {CONFIG} does not say for which: "
                f"expected target_parameters with {names}"
            )
        parameter, prefix, experts, projection = wrapped[len(wrapped) - 1 - module.inner]
        scale = self._scales.of(f"{module.name}.{parameter}")
        shape = experts.shape_of(projection)
        if projection is Projection.UP and experts.gate is not None:
            shape = LinearTarget(2 * shape.outputs, shape.inputs)
        flipped = self._is_flipped(experts, shape, both)
        if flipped:
            shape = LinearTarget(shape.inputs, shape.outputs)
        place = StackedPlace(prefix, experts, projection, flipped)
        return self._checked(place, f"{prefix}.{parameter}", both, scale, shape, experts.num_experts)

    def _is_flipped(self, experts: ExpertsTarget, shape: LinearTarget, both: dict[str, StoredTensor]) -> bool:
        """Whether PEFT took the parameter's outputs for its inputs, which depends on its version."""
        now, before = experts.inputs_first != experts.is_transposed, not experts.inputs_first
        if shape.inputs != shape.outputs:
            return both["A"].shape[-1:] == (shape.outputs,)
        version = self._config.peft_version
        if version < _SWAPS and (now != before or version >= (0, 19)):
            raise AdapterError(
                f"{both['A'].name!r:.200} is of PEFT {version[0]}.{version[1]}, whose versions disagree on which side "
                f"of a square parameter A is: train the adapter with PEFT {_SWAPS[0]}.{_SWAPS[1]} or later"
            )
        return now

    def _checked(
        self,
        place: Place,
        name: str,
        both: dict[str, StoredTensor],
        scale: LayerScale,
        shape: LinearTarget,
        experts: int = 1,
    ) -> Pair:
        a, b, rows = both["A"], both["B"], scale.rank * experts
        for tensor, expected in ((a, (rows, shape.inputs)), (b, (shape.outputs, rows))):
            if len(tensor.shape) != 2 or 0 in tensor.shape:
                raise _misshaped(tensor, expected)
            if tensor.shape == expected:
                continue
            side = 0 if tensor is a else 1
            if tensor.shape[1 - side] != expected[1 - side]:
                raise self._other_base(tensor, expected, name)
            found = f"{tensor.shape[side] / experts:g}"
            raise AdapterError(
                f"{tensor.name!r:.200} has rank {found}, but by {CONFIG} (r, rank_pattern) it is {scale.rank}: save "
                "the adapter again, so that both agree"
            )
        return Pair(place, name, a, b, scale)

    def _other_base(self, tensor: StoredTensor, expected: tuple[int, ...], name: str) -> AdapterError:
        base = f", which is {self._config.base_model!r:.200}" if self._config.base_model else ""
        advice = f"serve the adapter with the base that it was trained on{base}"
        if name in self._tables:
            advice += f"; if tokens were added to that base, {MERGE}"
        return AdapterError(
            f"{tensor.name!r:.200} has shape {list(tensor.shape)}, but for this model's {name} it must be "
            f"{list(expected)}: {advice}"
        )

    def _unknown(self, tensor: StoredTensor, name: str) -> AdapterError:
        end = name.rpartition(".")[2]
        alike = sorted(self._names(), key=lambda each: each.rpartition(".")[2] != end)[:_MOST_NAMES]
        base = f" (trained on {self._config.base_model!r:.200})" if self._config.base_model else ""
        return AdapterError(
            f"{tensor.name!r:.200} is for {name!r:.200}, which is no layer of this model that takes adapters{base}; "
            f"there are {', '.join(alike)}, …"
        )

    def _names(self) -> Iterator[str]:
        yield from self._targets.linear
        for prefix, experts in self._targets.experts.items():
            yield f"{prefix}.0.{experts.up}"
        yield from self._tables


def _parse(name: str) -> tuple[_Module, str]:
    """The module that a tensor is for, and which of its tensors it is: ``A``, ``B`` or ``saved``."""
    found = _NAME.fullmatch(name) if len(name) <= _LONGEST_NAME and name.isascii() else None
    if found is None or (found["saved"] and ".lora_" in name):
        raise AdapterError(f"{name!r:.200} in {WEIGHTS} {_problem(name)}")
    inner = found["inner"].count(".")
    role = found["matrix"] or found["table"] or "saved"
    return _Module(found["module"], inner, found["table"] is not None), role


def _problem(name: str) -> str:
    for part, what in (
        ("lora_magnitude_vector", "has magnitudes of weights (DoRA)"),
        ("trainable_tokens", "has embeddings of single tokens"),
        ("bias", "is a bias"),
        ("lora_", "is none of lora_A and lora_B"),
    ):
        if part in name:
            return f"{what}, which the engine does not compute: {MERGE}"
    return "is not a tensor of a LoRA adapter: expected names such as base_model.model.….q_proj.lora_A.weight"


def _misshaped(tensor: StoredTensor, expected: tuple[int, ...]) -> AdapterError:
    """What no other base would explain."""
    advice = "save the adapter again" + (
        ", after its parts are gathered (DeepSpeed's stage 3, FSDP)" if 0 in tensor.shape else ""
    )
    return AdapterError(f"{tensor.name!r:.200} has shape {list(tensor.shape)}; expected {list(expected)}: {advice}")


def _twice(first: StoredTensor, second: StoredTensor) -> AdapterError:
    return AdapterError(f"{WEIGHTS} has two tensors for one place: {first.name!r:.200} and {second.name!r:.200}")
