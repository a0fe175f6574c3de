"""Computes results of pooled hidden states: dense layers, cuts and lengths of vectors, heads and their activations.

Symbols in shapes: R rows, H hidden size, L labels. All is in float32, whatever the model's type, and a row's bits do
not depend on the other rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from engine_core.layers.part_factory import PartFactory
from engine_core.pooling.config import HeadActivation, PoolerConfig, PoolingType, TokenHead
from engine_core.pooling.params import PoolingParams
from engine_core.pooling.rows import PooledRows, pooled_rows

Values = npt.NDArray[np.float32]
"""[R, numbers of a result]"""
_LEAST_LENGTH = 1e-12
"""Of a vector that is scaled, as in torch.nn.functional.normalize."""

Wide = npt.NDArray[np.float64]


def _erf(x: Wide) -> Wide:
    return np.array([math.erf(each) for each in x.ravel().tolist()]).reshape(x.shape)


def _sigmoid(x: Wide) -> Wide:
    with np.errstate(over="ignore"):  # of numbers far below 0, whose sigmoid is 0
        return 1 / (1 + np.exp(-x))


ACTIVATIONS: dict[str, Callable[[Wide], Wide]] = {
    "Identity": lambda x: x,
    "Tanh": np.tanh,
    "ReLU": lambda x: np.maximum(x, 0),
    "GELU": lambda x: x * 0.5 * (1 + _erf(x / math.sqrt(2))),
    "Sigmoid": _sigmoid,
    "SiLU": lambda x: x * _sigmoid(x),
}
"""By ``DenseLayer.activation``. In float64, by numpy, whose results do not depend on a number's place."""


class Head(Protocol):
    """Numbers of labels."""

    def __call__(self, x: torch.Tensor, /) -> torch.Tensor:
        """[R, L] float32 of ``x`` [R, H] float32, without padding."""


class Pooler:
    """Behind the last stage's norm. Its parts are whole on every rank; the one that samples computes with them."""

    def __init__(
        self, config: PoolerConfig, parts: PartFactory, vocab_size: int, hidden_size: int, classifier: Head | None
    ) -> None:
        """Make the parts. ``classifier``: the model's own, for labels that are no tokens."""
        self.config = config
        self._device = parts.device
        self._hidden_size = hidden_size
        self._dense = [
            (
                parts.float32_linear(f"{layer.folder}.linear", layer.inputs, layer.outputs, bias=layer.bias),
                ACTIVATIONS[layer.activation],
            )
            for layer in config.dense
        ]
        self._head = classifier
        if (tokens := config.tokens) is not None:
            rows = parts.token_rows_linear(tokens.tensor, vocab_size, hidden_size, tokens.token_ids)
            self._head = _TokenLabels(tokens, rows)

    def rows(self, params: PoolingParams, length: int) -> PooledRows:
        """Takes the hidden states of an input of ``length`` tokens."""
        return pooled_rows(self.config.pooling, length, per_token=params.task.per_token)

    @property
    def takes_all_rows(self) -> bool:
        """Whether a whole input's result is made of the hidden states of all tokens."""
        return self.config.pooling not in (PoolingType.LAST, PoolingType.CLS)

    def results(self, pooled: Values, params: PoolingParams) -> Values:
        """The results of rows ``pooled`` [R, H or more] that have equal ``params``."""
        x = np.ascontiguousarray(pooled[:, : self._hidden_size])
        if not params.task.embeds:
            assert self._head is not None
            labels = self._computed(self._head, x)
            return _activated(labels, self.config.activation) if params.activation else labels
        for linear, activation in self._dense:
            x = activation(self._computed(linear, x).astype(np.float64)).astype(np.float32)
        vectors = x[:, : params.dimensions or self.config.facts.dimensions]
        return _normalized(vectors) if params.normalize else vectors

    def _computed(self, layers: Head, x: Values) -> Values:
        """The outputs of ``layers`` for ``x`` on the host."""
        return np.asarray(layers(torch.from_numpy(x).to(self._device)).cpu().numpy())


class _TokenLabels:
    """What the language model's head says of tokens; or of two, the second one's number, less the first one's."""

    def __init__(self, tokens: TokenHead, rows: Head) -> None:
        """``rows``: the products with the rows of the head's weight."""
        self._tokens = tokens
        self._rows = rows

    def __call__(self, x: torch.Tensor, /) -> torch.Tensor:
        numbers, cap = self._rows(x), self._tokens.softcap
        if self._tokens.scale != 1.0 or cap is not None:
            wide = numbers.cpu().numpy().astype(np.float64) * self._tokens.scale
            wide = wide if cap is None else np.tanh(wide / cap) * cap
            numbers = torch.from_numpy(wide.astype(np.float32)).to(x.device)
        return numbers[:, 1:] - numbers[:, :1] if self._tokens.is_difference else numbers


def _normalized(vectors: Values) -> Values:
    """``vectors`` scaled to a length of 1; zeros stay zeros."""
    wide = np.ascontiguousarray(vectors, np.float64)
    lengths = np.sqrt(np.add.reduce(wide * wide, axis=1, keepdims=True))
    return (wide / np.maximum(lengths, _LEAST_LENGTH)).astype(np.float32)


def _activated(labels: Values, activation: HeadActivation) -> Values:
    wide = np.ascontiguousarray(labels, np.float64)
    match activation:
        case HeadActivation.NONE:
            return labels
        case HeadActivation.SIGMOID:
            return _sigmoid(wide).astype(np.float32)
    powers = np.exp(wide - wide.max(axis=1, keepdims=True))
    shares: Wide = powers / np.add.reduce(powers, axis=1, keepdims=True)
    return shares.astype(np.float32)
