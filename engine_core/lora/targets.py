"""What of a model takes adapters, by its checkpoint's names; it goes from process to process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum


def same_name(name: str) -> str | None:
    """For models whose modules have the names of their checkpoint's tensors."""
    return name


@dataclass(frozen=True, slots=True)
class LinearTarget:
    """A linear layer in the checkpoint, of which the model may have several side by side."""

    outputs: int
    inputs: int


class Projection(Enum):
    """A linear layer of an expert."""

    GATE = "gate"
    UP = "up"
    DOWN = "down"


@dataclass(frozen=True, slots=True)
class ExpertsTarget:
    """A layer's experts: down(f(gate(x)) · up(x)), or down(f(up(x)))."""

    num_experts: int
    hidden_size: int
    intermediate_size: int
    gate: str | None = "gate_proj"
    """Projections in checkpoints that have an expert's one by one: ``<prefix>.<expert>.<name>``; None: no gates."""
    up: str = "up_proj"
    down: str = "down_proj"
    stacked_up: str = "gate_up_proj"
    """Parameters of all experts in transformers' model: ``<prefix>.<name>``; gates, if any, and ups in one."""
    stacked_down: str = "down_proj"
    interleaved: bool = False
    """Whether gates and ups alternate in ``stacked_up``, instead of all gates before all ups."""
    inputs_first: bool = False
    """Whether parameters are [E, inputs, outputs], instead of [E, outputs, inputs]."""
    is_transposed: bool = False
    """Whether transformers' module says so: to PEFT, parameters of others are [E, outputs, inputs]."""

    def named(self, name: str) -> Projection | None:
        """The projection called ``name`` in checkpoints that have them one by one."""
        names = {self.gate: Projection.GATE, self.up: Projection.UP, self.down: Projection.DOWN}
        return names.get(name)

    def shape_of(self, projection: Projection) -> LinearTarget:
        """Of one expert."""
        if projection is Projection.DOWN:
            return LinearTarget(self.hidden_size, self.intermediate_size)
        return LinearTarget(self.intermediate_size, self.hidden_size)


class Table(Enum):
    """A table with a row for each token."""

    EMBEDDING = "embedding"
    HEAD = "head"


@dataclass(frozen=True, slots=True)
class TableTarget:
    """The embedding, or the head."""

    name: str
    rows: int
    width: int


@dataclass(frozen=True, slots=True)
class LoRALimits:
    """What adapters may take."""

    max_lora_rank: int
    max_bytes: int
    """Of one adapter's ``nbytes``."""


@dataclass(frozen=True, slots=True)
class LoRATargets:
    """All that takes adapters, by names without ``.weight``."""

    linear: Mapping[str, LinearTarget]
    experts: Mapping[str, ExpertsTarget] = field(default_factory=dict)
    """By the prefix of their tensors: ``model.layers.0.mlp.experts``."""
    embedding: TableTarget | None = None
    head: TableTarget | None = None
    """Also a tied one, under the name that it has where it is not tied."""
    dtype: str = "bfloat16"
    """The model's, by torch's name: adapters are rounded to it."""
    embedding_copies: int = 1
    """Ranks that keep all of what an adapter changes of the embedding: each that embeds tokens."""
    rename: Callable[[str], str | None] = same_name
    """From the name of a module in transformers' model to the checkpoint's; None: of a part that takes no adapters, as
    a tower. A function of a module, or an object that can be pickled.
    """
    prefix: str = ""
    """What names lack if the adapter was trained on the model by itself, without a head, as embedding models are."""
    unused: tuple[str, ...] = ()
    """Beginnings of the names of layers that no result depends on: what is added to these is left out."""

    @property
    def most_tensors(self) -> int:
        """The most that an adapter's file may have: twice those that are known, so that others are refused by name."""
        of_experts = sum(3 * each.num_experts + 2 for each in self.experts.values())
        return 2 * (2 * (len(self.linear) + of_experts + 2) + 2)


def joined_targets(parts: Sequence[LoRATargets]) -> LoRATargets:
    """Those of a model of which ranks have ``parts``."""
    first = parts[0]
    return replace(
        first,
        linear={name: target for each in parts for name, target in each.linear.items()},
        experts={name: target for each in parts for name, target in each.experts.items()},
        embedding=next((each.embedding for each in parts if each.embedding is not None), None),
        embedding_copies=sum(each.embedding is not None for each in parts) or 1,
        head=next((each.head for each in parts if each.head is not None), None),
        unused=tuple(name for name in first.unused if all(name in each.unused for each in parts)),
    )
