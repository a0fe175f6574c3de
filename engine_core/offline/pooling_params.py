"""The parameters of ``LLM.embed`` and its siblings, with vLLM's names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from engine_core.errors import InvalidRequestError, written
from engine_core.offline.numpy_to_python import plain
from engine_core.pooling import params as core
from engine_core.pooling.facts import PoolingFacts

_OF_VLLM = {
    **dict.fromkeys(
        ("step_tag_id", "returned_token_ids"), "results of all tokens come, of which you take what you like"
    ),
    "skip_reading_prefix_cache": "cached prefixes are used only where the result is the same",
    "output_kind": "results are whole",
    **dict.fromkeys(("softmax", "activation"), "it is called use_activation"),
    **dict.fromkeys(("requires_token_ids", "late_interaction_params", "extra_kwargs"), "it is vLLM's own"),
}
"""Unsupported parameters of vLLM's class, with alternatives."""


@dataclass(frozen=True, slots=True)
class PoolingParams:
    """How prompts are pooled."""

    task: str | None = None
    """embed, classify, token_embed or token_classify. None: what the call is for."""
    dimensions: int | None = None
    """Leading numbers of a vector that are kept, before it is normalized. None: all."""
    normalize: bool | None = None
    """Scale vectors to a length of 1. None: as the model does."""
    use_activation: bool | None = None
    """Of labels: apply the head's sigmoid or softmax (None: yes). Of vectors: ``normalize``."""
    truncate_prompt_tokens: int | None = None
    """Cut the end of longer prompts, or documents of pairs, to so many tokens; −1: to ``max_model_len``. None: they are
    refused."""

    def __new__(cls, *args: Any, **params: Any) -> Self:
        """Raise TypeError for an unsupported parameter of vLLM's, naming the alternative."""
        for name in _OF_VLLM.keys() & params.keys():
            raise TypeError(f"parameter {name!r} is not supported: {_OF_VLLM[name]}")
        return object.__new__(cls)

    def for_engine(self, task: core.PoolingTask, facts: PoolingFacts, place: str) -> core.PoolingParams:
        """The engine's parameters, which ``validate_pooling_request`` checks. Raises ``InvalidRequestError``."""
        normalize, activation = self.normalize, self.use_activation
        if task.embeds:
            if None not in (normalize, activation) and normalize != activation:
                raise InvalidRequestError(f"{place}: use_activation", "is not what normalize is; expected one of them")
            normalize = activation if normalize is None else normalize
            activation = None
        elif normalize is not None:
            raise InvalidRequestError(f"{place}: normalize", f"is for vectors; expected None for {task.value}")
        return core.PoolingParams(
            task,
            plain(self.dimensions),
            facts.normalizes if normalize is None else normalize,
            True if activation is None else activation,
        )

    def cut(self, most: int, place: str) -> int | None:
        """Tokens to which prompts are cut; None: they are not. Raises ``InvalidRequestError``."""
        asked = plain(self.truncate_prompt_tokens)
        if asked is None or (type(asked) is int and asked == -1):
            return None if asked is None else most
        if type(asked) is not int or not 1 <= asked <= most:
            problem = f"is {written(asked)}; expected None, or from 1 to {most} (max_model_len), or -1 for that"
            raise InvalidRequestError(f"{place}: truncate_prompt_tokens", problem)
        return asked


def read_pooling_params(given: object, num_prompts: int) -> tuple[list[PoolingParams], list[str]]:
    """The parameters of each prompt, and their places in the caller's arguments. Raises TypeError, ``ValueError``."""
    if given is None:
        given = PoolingParams()
    if isinstance(given, PoolingParams):
        return [given] * num_prompts, ["pooling_params"] * num_prompts
    if not isinstance(given, Sequence):
        problem = f"pooling_params is of type {type(given).__name__}"
        raise TypeError(f"{problem}; expected PoolingParams, or a list of them")
    places = [f"pooling_params[{index}]" for index in range(len(given))]
    for each, place in zip(given, places, strict=True):
        if not isinstance(each, PoolingParams):
            raise TypeError(f"{place} is of type {type(each).__name__}; expected PoolingParams")
    if len(given) != num_prompts:
        numbers = f"the number of pooling_params is {len(given)}, that of prompts is {num_prompts}"
        raise ValueError(f"{numbers}; expected one for all, or one for each")
    return list(given), places
