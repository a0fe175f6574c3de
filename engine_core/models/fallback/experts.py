"""The experts of a mixture within a transformers module: as checkpoints store them, and replaced by the engine's.

Routers remain as transformers has them, but for their products.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedModel
from transformers.integrations import moe

from engine_core.errors import UnsupportedModelError
from engine_core.layers.fused_moe import RoutedExperts
from engine_core.models.fallback.modules import ACTIVATIONS, widened
from engine_core.models.model_config import check_number_of_experts
from engine_core.ops.base import LinearOp, OpsBackend
from engine_core.weights.expert_tensors import SeparateExperts
from engine_core.weights.experts import ExpertsShape

_PLAIN = {"has_gate": True, "has_bias": False, "has_post_expert_norm": False, "is_transposed": False}
_PLAIN |= {"is_concatenated": True}
"""The attributes by which transformers describes experts, for those that the engine has."""
_GATE, _UP, _DOWN = 1.0, 2.0, 3.0


class Experts(nn.Module):
    """Replaces a module with the experts of a layer."""

    def __init__(self, part: RoutedExperts, width: int) -> None:
        """``width``: H with the backend's padding."""
        super().__init__()
        self._part = part
        self._width = width

    def forward(
        self, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
    ) -> torch.Tensor:
        """[T, H]: the experts ``top_k_index`` [T, k] of each row of ``hidden_states`` [T, H], weighted and summed."""
        shape = self._part.shape
        if hidden_states.is_meta:
            if top_k_index.shape[-1] != shape.top_k:
                raise UnsupportedModelError(
                    f"its routers choose {top_k_index.shape[-1]} experts: expected top_k={shape.top_k}"
                )
            return hidden_states.new_empty(hidden_states.shape)
        rows = widened(hidden_states, self._width).contiguous()
        ids, weights = top_k_index.int().contiguous(), top_k_weights.float().contiguous()
        return self._part.combine(rows, ids, weights, None)[:, : shape.hidden_size]


class Router(nn.Module):
    """Replaces a module that chooses experts: the same, with the engine's product of float32.

    torch's may give a row other bits in another step.
    """

    def __init__(self, module: nn.Module, backend: OpsBackend) -> None:
        super().__init__()
        self._module = [module]  # in a list, so that its tensors are not registered here
        self._product = _Product(backend)

    @property
    def top_k(self) -> int:
        """Experts per row."""
        return int(self._module[0].top_k)  # type: ignore[arg-type]

    def forward(self, *arguments: torch.Tensor) -> Any:
        """What the module returns: among others, experts and their weights."""
        with self._product:
            return self._module[0](*arguments)


class _Product(TorchFunctionMode):
    """Computes the one product of a router within the context."""

    def __init__(self, backend: OpsBackend) -> None:
        super().__init__()
        self._backend = backend
        self._op: LinearOp | None = None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not nn.functional.linear or args[0].is_meta or args[2:] not in ((), (None,)):
            return func(*args, **(kwargs or {}))
        x, weight = args[:2]
        width = self._backend.padded(weight.shape[1])
        if self._op is None:
            self._op = self._backend.linear(widened(weight.float(), width).contiguous())
        rows = widened(x.float().reshape(-1, weight.shape[1]), width).contiguous()
        logits: torch.Tensor = self._op(rows)[:, : weight.shape[0]]
        return logits.reshape(*x.shape[:-1], -1).to(x.dtype)


def is_experts(module: nn.Module) -> bool:
    """Whether transformers calls ``module`` through its interface of experts."""
    return all(hasattr(module, name) for name in _PLAIN)


def routers_of(block: nn.Module) -> list[nn.Module]:
    """The modules in ``block``, which has experts, that choose some of them."""
    choosing = (each for each in block.modules() if isinstance(getattr(each, "top_k", None), int))
    return [each for each in choosing if not any(map(is_experts, each.modules()))]


def shape_of_experts(place: str, experts: nn.Module, block: nn.Module) -> ExpertsShape:
    """Of the experts at ``place`` in ``block``. Raises ``UnsupportedModelError`` for other experts than plain ones."""
    described = {name: getattr(experts, name) for name in _PLAIN}
    if type(experts)._apply_gate is not moe._default_apply_gate or described != _PLAIN:  # type: ignore[attr-defined]
        raise UnsupportedModelError(f"{place} are experts of another kind than gated ones without biases")
    act_fn: Any = experts.act_fn
    activation = ACTIVATIONS.get(type(act_fn))
    if activation is None:
        raise UnsupportedModelError(f"{place} have an activation, {type(act_fn).__name__}, that the engine lacks")
    chosen: set[Any] = {router.top_k for router in routers_of(block)}
    if len(chosen) != 1:
        raise UnsupportedModelError(f"{place} have {len(chosen)} routers with a top_k: expected one")
    count, hidden, inner = experts.get_parameter("down_proj").shape
    check_number_of_experts(count, 1)
    return ExpertsShape(count, chosen.pop(), hidden, inner, activation)


def layout_of_experts(model: PreTrainedModel, place: str) -> SeparateExperts:
    """How checkpoints store the experts at ``place``. Raises ``UnsupportedModelError`` for an unknown layout.

    Found by having transformers store one expert of one gate, up and down.
    """
    from transformers.core_model_loading import revert_weight_conversion

    gate_up, down = torch.tensor([[[_GATE], [_UP]]], device="cpu"), torch.tensor([[[_DOWN]]], device="cpu")
    stored = revert_weight_conversion(model, {f"{place}.gate_up_proj": gate_up, f"{place}.down_proj": down})
    names = {tensor.item(): name for name, tensor in stored.items() if tensor.numel() == 1}
    if sorted(names) != [_GATE, _UP, _DOWN]:
        raise UnsupportedModelError(f"{place} are stored in another form than one by one: as {', '.join(stored)}")
    (prefix, gate), (_, up), (_, down_name) = (_split(names[each]) for each in (_GATE, _UP, _DOWN))
    return SeparateExperts(prefix, gate=gate, up=up, down=down_name)


def _split(name: str) -> tuple[str, str]:
    """The prefix of all experts, and the projection, of a name such as ``mlp.experts.0.up_proj.weight``."""
    prefix, _, projection = name.removesuffix(".weight").rpartition(".0.")
    return prefix, projection
