"""What adapters add to the experts of a layer, or to a rank's shard of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import torch

from engine_core.lora.adapter import ExpertMatrices, LoRAMatrices
from engine_core.lora.targets import ExpertsTarget, Projection
from engine_core.ops.lora import LoRAOps, LoRAOutputs, LoRAWeights
from engine_core.weights.expert_tensors import ExpertTensors
from engine_core.weights.experts import ExpertsShape, ExpertsShard


class LoRAExperts:
    """Adds to the products of a layer's experts."""

    def __init__(
        self,
        shape: ExpertsShape,
        shard: ExpertsShard,
        tensors: ExpertTensors,
        ops: LoRAOps,
        padded: Callable[[int], int],
        dtype: torch.dtype,
    ) -> None:
        """``padded``: the backend's. ``dtype``: the model's, in which adapters are kept."""
        self.prefix = tensors.prefix
        self.target = _target(shape, tensors)
        self.op = ops.experts()
        self._shard = shard
        self._padded = padded
        self._dtype = dtype

    def weights(self, adapted: Mapping[int, ExpertMatrices]) -> Iterator[tuple[int, LoRAWeights]]:
        """Those of each product that an adapter adds to, by the number of its layer; ``adapted``: by expert."""
        inner = len(self._shard.inner)
        of_gate = [(Projection.GATE, self._shard.inner, 0)] if self.target.gate is not None else []
        expanding = [*of_gate, (Projection.UP, self._shard.inner, self._padded(inner) * len(of_gate))]
        reducing = [(Projection.DOWN, self._shard.hidden, 0)]
        widths = self._padded(self.target.hidden_size), self._padded(self.target.intermediate_size)
        for product, (projections, width) in enumerate(zip((expanding, reducing), widths, strict=True)):
            wanted = {projection for projection, rows, _ in projections if rows}
            experts = [each for each in self._shard.experts if wanted & adapted.get(each, {}).keys()]
            if experts:
                matrices = [adapted[each] for each in experts]
                yield self.op.layer + product, self._product(experts, matrices, projections, width)

    def _product(
        self,
        experts: list[int],
        matrices: list[ExpertMatrices],
        projections: list[tuple[Projection, range, int]],
        width: int,
    ) -> LoRAWeights:
        """Of ``experts`` and their ``matrices``, for inputs of a padded ``width``.

        ``projections``: each one's rows in this shard, and the column of the first.
        """
        groups = torch.full((len(self._shard.experts),), -1, dtype=torch.int32)
        groups[torch.tensor(experts) - self._shard.experts.start] = torch.arange(len(experts), dtype=torch.int32)
        blocks: list[list[LoRAMatrices | None]] = []
        outputs, ranks = list[LoRAOutputs](), 0
        for projection, rows, column in projections:
            found = [each.get(projection) for each in matrices]
            rank = max((0 if each is None else each.rank) for each in found)
            if not rank or not rows:
                continue
            if not (blocks and _share_inputs(found, blocks[-1])):
                blocks.append(found)
                ranks += rank
            b = torch.zeros(len(experts), len(rows), rank, dtype=self._dtype)
            for group, each in enumerate(found):
                if each is not None:
                    b[group, :, : each.rank] = each.b[rows.start : rows.stop]
            outputs.append(LoRAOutputs(range(ranks - rank, ranks), torch.arange(column, column + len(rows)), b))
        a = torch.zeros(len(experts), ranks, width, dtype=self._dtype)
        scales, first = torch.zeros(len(experts), ranks), 0
        for block in blocks:
            for group, each in enumerate(block):
                if each is not None:
                    last = first + each.rank
                    a[group, first:last, : each.a.shape[1]] = each.a
                    scales[group, first:last] = each.scaling
            first += max(each.rank for each in block if each is not None)
        return LoRAWeights(a, scales, tuple(outputs), groups)


def _share_inputs(some: list[LoRAMatrices | None], others: list[LoRAMatrices | None]) -> bool:
    """Whether gates and ups have one A, as those of one parameter do."""
    pairs = zip(some, others, strict=True)
    return all(a is not None and b is not None and a.a is b.a and a.scaling == b.scaling for a, b in pairs)


def _target(shape: ExpertsShape, tensors: ExpertTensors) -> ExpertsTarget:
    one_by_one, parameters = tensors.separate, tensors.parameters
    return ExpertsTarget(
        num_experts=shape.num_experts,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        gate=one_by_one.gate if shape.gated else None,
        up=one_by_one.up,
        down=one_by_one.down,
        stacked_up=parameters.gate_up if shape.gated else one_by_one.up,
        stacked_down=parameters.down,
        interleaved=parameters.interleaved,
        inputs_first=parameters.inputs_first,
        is_transposed=parameters.is_transposed,
    )
