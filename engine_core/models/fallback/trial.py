"""Runs a step of a transformers model on the meta device, which computes nothing but shows what each layer does.

The engine takes heads, windows and scales from what modules pass to attention, and not from the configuration, whose
fields each module reads in its own way.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from transformers import AttentionInterface, PretrainedConfig
from transformers.masking_utils import AttentionMaskInterface

from engine_core.attention.torch_reference import TorchAttention
from engine_core.errors import UnsupportedModelError
from engine_core.layers.part_factory import PartFactory
from engine_core.models.fallback.assembly import Assembly, assemble
from engine_core.models.fallback.modules import attend, set_attention
from engine_core.models.model_config import positive
from engine_core.ops.torch import TorchBackend

_IMPLEMENTATION = "ringline-trial"
_WINDOW = "ringline_window"
"""The attribute of a mask with the number of tokens that a token sees."""
_NO_LIMIT = 0
"""Its value if a token sees all others."""
_NEITHER = "neither causal nor a sliding window: it may be an encoder"
_ROWS = 5
_MOST_POSITIONS = 2**20
"""Positions at which masks are examined; no model has a longer window."""
_EPSILONS = ("eps", "variance_epsilon")
"""Attribute names in the norms of torch and of transformers."""
_NOT_REPLACEABLE = "it does not attend through transformers' AttentionInterface, which the engine needs"
_WITHOUT_EFFECT = frozenset(
    {"cache_position", "logits_to_keep", "output_attentions", "output_hidden_states", "position_ids", "return_dict"}
    | {"use_cache"}
)
"""Arguments of attention that do not change it."""


@dataclass(frozen=True, slots=True)
class LayerOutline:
    """What one layer passes to attention."""

    module: str
    """The attending module's path in the model."""
    num_heads: int
    num_kv_heads: int
    head_dim: int
    """The width of queries and keys."""
    value_dim: int
    scale: float
    sliding_window: int | None
    logit_softcap: float | None
    sinks: str | None
    """The path of a parameter [Hq]."""

    @property
    def widest_head(self) -> int:
        """The cache's width."""
        return max(self.head_dim, self.value_dim)


@dataclass(frozen=True, slots=True)
class Outline:
    """What the trial shows of a model."""

    layers: tuple[LayerOutline, ...]
    path: str
    """The path of the list of layers."""
    hidden_size: int
    intermediate_size: int
    """The most outputs of any linear layer in the layers."""
    vocab_size: int
    is_head_plain: bool
    """Whether logits are the head's output for the hidden states, both unchanged."""
    encodes: bool = False
    """Whether it has no head, and tokens see those after them."""


def outline_of(config: PretrainedConfig, architecture: str, *, encodes: bool = False) -> Outline:
    """Try the model that ``config`` describes, an encoder if it ``encodes``.

    Raises ``UnsupportedModelError`` if the engine cannot run it.
    """
    meta = torch.device("meta")
    factory = PartFactory(TorchBackend(), TorchAttention(), torch.float32, meta)
    with refusing(architecture):
        return _Trial(assemble(config, factory, _IMPLEMENTATION, encodes=encodes)).run()


@contextmanager
def refusing(architecture: str) -> Iterator[None]:
    """Convert anything that transformers raises in building or trying a module to ``UnsupportedModelError``."""
    try:
        yield
        return
    except UnsupportedModelError as error:
        reason = str(error)
    except KeyError as error:  # from a class that chooses among its own attention functions
        reason = _NOT_REPLACEABLE if error.args == (_IMPLEMENTATION,) else f"KeyError: {error}"
    except Exception as error:  # a module that expects to be called differently may raise anything
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
    raise UnsupportedModelError(f"{architecture} does not run through transformers with the engine's layers: {reason}")


class _Trial:
    """One step of one model."""

    def __init__(self, assembly: Assembly) -> None:
        self._assembly = assembly
        self._parameters = {id(parameter): name for name, parameter in assembly.module.named_parameters()}
        self._layers: list[LayerOutline] = []

    @torch.no_grad()
    def run(self) -> Outline:
        """Run the step. Raises ``UnsupportedModelError``."""
        assembly = self._assembly
        if empty := [name for name, shape in assembly.shapes.items() if 0 in shape]:
            raise UnsupportedModelError(
                f"{empty[0]} has shape {assembly.shapes[empty[0]]}: expected sizes of at least 1"
            )
        _require_epsilons(assembly.module)
        for name, module in assembly.module.named_modules():
            set_attention(module, partial(self._attend, name))
        with torch.device("meta"):
            hidden = assembly.decoder(
                input_ids=torch.zeros(1, _ROWS, dtype=torch.int64),
                position_ids=torch.arange(_ROWS)[None],
                attention_mask=torch.ones(1, _ROWS, dtype=torch.int64),
                **({} if assembly.head is None else {"use_cache": False}),
            ).last_hidden_state
            vocab_size, is_plain = self._head(hidden)
        path = self._path()
        return Outline(
            layers=tuple(self._layers),
            path=path,
            hidden_size=hidden.shape[-1],
            intermediate_size=self._widest(path),
            vocab_size=vocab_size,
            is_head_plain=is_plain,
            encodes=assembly.head is None,
        )

    def _attend(
        self,
        module: str,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        options: Mapping[str, Any],
    ) -> torch.Tensor:
        """Record the arguments of attention; return an output of its shape."""
        others = {name: given for name, given in options.items() if given is not None and name not in _WITHOUT_EFFECT}
        scale, softcap, sinks = others.pop("scaling", None), others.pop("softcap", None), others.pop("s_aux", None)
        encodes = self._assembly.head is None
        window = _window(attention_mask, others.pop("sliding_window", None), encodes=encodes)
        if others.pop("dropout", 0.0) or bool(others.pop("is_causal", not encodes)) == encodes:
            attends = "does not attend" if encodes else "attends"
            raise UnsupportedModelError(f"{module} uses dropout or {attends} to later tokens, which is not supported")
        if others:
            raise UnsupportedModelError(
                f"{module} passes {', '.join(sorted(others))} to attention, which the engine's does not support"
            )
        if sinks is not None and id(sinks) not in self._parameters:
            raise UnsupportedModelError(f"{module} computes its attention sinks (s_aux): expected a parameter")
        num_heads, head_dim, value_dim = query.shape[1], query.shape[3], value.shape[3]
        if num_heads % key.shape[1]:
            raise UnsupportedModelError(
                f"{module} has {num_heads} query heads: expected a multiple of its {key.shape[1]} key heads"
            )
        if key.shape[3] != head_dim or value.shape[1] != key.shape[1]:
            raise UnsupportedModelError(
                f"{module} has queries of {_heads(query)}, keys of {_heads(key)} and values of {_heads(value)}: "
                "expected keys as wide as queries, and as many value heads as key heads"
            )
        self._layers.append(
            LayerOutline(
                module=module,
                num_heads=num_heads,
                num_kv_heads=key.shape[1],
                head_dim=head_dim,
                value_dim=value_dim,
                scale=head_dim**-0.5 if scale is None else _positive(module, "scales scores by", scale),
                sliding_window=window,
                logit_softcap=None if softcap is None else _positive(module, "caps scores at", softcap),
                sinks=None if sinks is None else self._parameters[id(sinks)],
            )
        )
        rows = (query.shape[2], key.shape[2], value.shape[2])
        if rows != (_ROWS,) * 3:
            raise UnsupportedModelError(
                f"{module} has {rows[0]} queries, {rows[1]} keys and {rows[2]} values for {_ROWS} tokens: expected "
                "one of each per token"
            )
        return value.new_empty(1, _ROWS, num_heads, value_dim)

    def _head(self, hidden: torch.Tensor) -> tuple[int, bool]:
        """The number of logits, and ``Outline.is_head_plain``."""
        assembly, given = self._assembly, torch.empty_like(hidden)
        if assembly.head is None:
            return positive(assembly.module.config, "vocab_size"), False
        calls: list[tuple[torch.Tensor, torch.Tensor]] = []
        handle = assembly.head.register_forward_hook(lambda _, inputs, output: calls.append((inputs[0], output)))
        logits = assembly.with_head_alone()(inputs_embeds=given, use_cache=False).logits
        handle.remove()
        [(x, y)] = calls
        return logits.shape[-1], logits is y and (x is given or x._base is given) and x.shape == given.shape

    def _path(self) -> str:
        """The path of the list of layers; each must attend once, all with the same number of heads."""
        layers = self._layers
        if not layers:
            raise UnsupportedModelError(_NOT_REPLACEABLE)
        if len({layer.num_heads for layer in layers}) > 1:
            raise UnsupportedModelError("its layers have different numbers of query heads: expected the same in all")
        for name, module in self._assembly.module.named_modules():
            attending = (layer.module.startswith(f"{name}.{index}.") for index, layer in enumerate(layers))
            if isinstance(module, nn.ModuleList) and len(module) == len(layers) and all(attending):
                return str(name)
        raise UnsupportedModelError(f"attention is called {len(layers)} times: expected one call by each layer")

    def _widest(self, path: str) -> int:
        shapes = [shape for name, shape in self._assembly.shapes.items() if name.startswith(f"{path}.")]
        return max(shape[0] for shape in shapes if len(shape) == 2)


def _heads(x: torch.Tensor) -> str:
    """The number and width of the heads of ``x`` [1, heads, T, D]."""
    return f"{x.shape[1]} × {x.shape[3]}"


def _positive(module: str, what: str, value: float) -> float:
    """A finite number above 0: with 0, all scores would be equal; with infinity, infinite or NaN."""
    number = float(value)
    if not 0 < number <= sys.float_info.max:
        raise UnsupportedModelError(f"{module} {what} {number}; expected a number above 0")
    return number


def _require_epsilons(model: nn.Module) -> None:
    """Raise ``UnsupportedModelError`` unless all norms' epsilons are from 0 to 1."""
    for name, module in model.named_modules():
        for attribute in _EPSILONS:
            value = getattr(module, attribute, None)
            if isinstance(value, float | int) and not 0 <= value < 1:
                raise UnsupportedModelError(f"{name} has an epsilon of {value}: expected a number from 0 to 1")


def _window(mask: torch.Tensor | None, given: int | None, *, encodes: bool) -> int | None:
    """The mask's window in tokens; raises ``UnsupportedModelError`` if the module passes another, or if it is causal
    or has a window where the model ``encodes``.
    """
    if mask is None or not hasattr(mask, _WINDOW):
        raise UnsupportedModelError(
            "it does not make masks through transformers' AttentionMaskInterface, which the engine needs"
        )
    shown: int | None = getattr(mask, _WINDOW)
    if encodes != (shown == _NO_LIMIT):
        kind = "not one of an encoder that sees whole inputs" if encodes else _NEITHER
        raise UnsupportedModelError(f"its mask is {kind}")
    if encodes:
        return None
    if given is not None and shown is not None and given != shown:
        raise UnsupportedModelError(f"its attention has a window of {given} tokens, but its mask one of {shown}")
    return shown


def _mask(*, q_length: int, kv_length: int, mask_function: Callable[..., torch.Tensor], **others: Any) -> torch.Tensor:
    """Instead of a mask, an empty tensor of its shape with the window as an attribute."""
    last = min(others["config"].max_position_embeddings, _MOST_POSITIONS) - 1
    mask = torch.empty(1, 1, q_length, kv_length, dtype=torch.bool, device="meta")
    setattr(mask, _WINDOW, _NO_LIMIT if _sees_all(mask_function, last) else _window_of(mask_function, last))
    return mask


def _sees_all(mask_function: Callable[..., torch.Tensor], last: int) -> bool:
    """Whether tokens see all others, found by probing what those at positions up to ``last`` see."""
    return bool(last) and all(bool(_seen(mask_function, at, last).all()) for at in (0, last // 2, last))


def _window_of(mask_function: Callable[..., torch.Tensor], last: int) -> int | None:
    """The window of a mask, None without one, found by probing what tokens at positions up to ``last`` see."""
    places = torch.arange(last + 1, device="cpu")
    window = last + 1 - int(_seen(mask_function, last, last).int().argmax())
    for position in sorted({0, 1, window - 1, window, last // 2, last} & set(range(last + 1))):
        seen = _seen(mask_function, position, last)
        if not torch.equal(seen, (places <= position) & (places > position - window)):
            raise UnsupportedModelError(f"its mask is {_NEITHER}")
    return None if window == last + 1 else window


def _seen(mask_function: Callable[..., torch.Tensor], position: int, last: int) -> torch.Tensor:
    """[last + 1]: which of the tokens up to ``last`` the one at ``position`` sees."""
    first = torch.zeros(1, 1, 1, 1, dtype=torch.int64, device="cpu")  # batch and head
    places = torch.arange(last + 1, device="cpu")[None, None, None]
    return mask_function(first, first, first + position, places).expand(1, 1, 1, -1).flatten()


AttentionInterface.register(_IMPLEMENTATION, attend)
AttentionMaskInterface.register(_IMPLEMENTATION, _mask)
