"""The interface to text that ``LLM`` needs, and text by a caller's tokenizer, which can only encode and decode."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn, Protocol, runtime_checkable

from engine_core.errors import InvalidRequestError
from engine_core.offline.conversations import Conversation
from engine_core.offline.prompts import Prompt
from engine_core.offline.sampling_params import SamplingParams
from engine_core.pooling.facts import PairForm
from engine_core.pooling.params import PoolingInput
from engine_core.request import Finish

_CONTEXT_TOKENS = 16
"""The number of a prompt's last tokens that affect how the text after it begins."""
_MOST_BYTES = 4
"""The most bytes of a character; each may be a token."""
_REPLACEMENT = "\ufffd"
Pair = tuple[Prompt, Prompt]
"""Two texts: what is looked for, and where."""


@runtime_checkable
class Tokenizer(Protocol):
    """Text to token ids and back."""

    def encode(self, text: str) -> list[int]:
        """The ids of a prompt, with its surrounding special tokens."""

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of ids, without special tokens."""


class Stopped(NamedTuple):
    """A stop string that ended a choice."""

    stop: str
    end: int
    """Number of the choice's ids, through the one that completes the stop string."""


class ChoiceText(Protocol):
    """The growing text of a choice."""

    def add(self, token_ids: Sequence[int], finish: Finish | None) -> Stopped | None:
        """Add the next ids, and ``finish`` with the last ones; nothing may be added after a stop string."""

    @property
    def text(self) -> str:
        """The text so far, without an ending that may become a stop string."""


class Text(Protocol):
    """A tokenizer, and everything made with it."""

    @property
    def tokenizer(self) -> Tokenizer: ...

    def check(self, params: SamplingParams, place: str) -> None:
        """Raise ``InvalidRequestError``, naming ``place``, for unusable text parameters."""

    def grammar(self, form: str, value: Any, params: SamplingParams, place: str) -> str:
        """The engine's grammar for a form (see ``offline.forms``). Raises ``InvalidRequestError``, naming ``place``."""

    def render(self, conversation: Conversation, **template: Any) -> Prompt:
        """A conversation as a prompt. Raises ``InvalidRequestError``, naming its place."""

    def with_pictures(self, prompt: Prompt) -> Prompt:
        """The ids of a prompt of text with pictures. Raises ``InvalidRequestError``, naming its place."""

    def pooled_texts(
        self, prompts: Sequence[Prompt], before: Sequence[str], cut: int | None, most: int
    ) -> list[PoolingInput]:
        """The ids of texts with what is put before each, cut at their ends to ``cut`` tokens.

        Raises ``InvalidRequestError``, naming the place, for one of more than ``most`` tokens that is not cut.
        """

    def pooled_pairs(
        self, pairs: Sequence[Pair], form: PairForm, instruction: str, cut: int | None, most: int
    ) -> list[PoolingInput]:
        """The ids of pairs of texts that a model reads together, in which the second may be cut; as above."""

    def choice(self, prompt_ids: Sequence[int], params: SamplingParams) -> ChoiceText: ...

    def token_text(self, token_id: int) -> str:
        """The text that a token, special or not, adds within a text."""


class CustomText:
    """Text by a caller's tokenizer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer

    def check(self, params: SamplingParams, place: str) -> None:
        if params.stop_strings:
            _refuse(f"{place}: stop", "needs", "use stop_token_ids")
        if params.include_stop_str_in_output or not params.skip_special_tokens:
            field = "include_stop_str_in_output" if params.include_stop_str_in_output else "skip_special_tokens"
            _refuse(f"{place}: {field}", "needs", "decode the ids as you like")

    def grammar(self, form: str, value: Any, params: SamplingParams, place: str) -> str:
        _refuse(f"{place}: {form}", "needs", "give it to an LLM without one")

    def render(self, conversation: Conversation, **template: Any) -> Prompt:
        _refuse(conversation.place, "a chat needs", "render the conversation and call generate")

    def with_pictures(self, prompt: Prompt) -> Prompt:
        _refuse(prompt.place, "a prompt with pictures needs", "give them to an LLM without one")

    def pooled_texts(
        self, prompts: Sequence[Prompt], before: Sequence[str], cut: int | None, most: int
    ) -> list[PoolingInput]:
        texts = (put + (each.text or "") for put, each in zip(before, prompts, strict=True))
        return [PoolingInput(tuple(map(int, self.tokenizer.encode(text)))[:cut]) for text in texts]

    def pooled_pairs(
        self, pairs: Sequence[Pair], form: PairForm, instruction: str, cut: int | None, most: int
    ) -> list[PoolingInput]:
        _refuse(pairs[0][1].place, "a pair of texts needs", "give them to an LLM without one")

    def choice(self, prompt_ids: Sequence[int], params: SamplingParams) -> ChoiceText:
        return _CustomChoice(self.tokenizer, prompt_ids)

    def token_text(self, token_id: int) -> str:
        return self.tokenizer.decode([token_id])


class _CustomChoice:
    def __init__(self, tokenizer: Tokenizer, prompt_ids: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._prompt_ids = prompt_ids
        self._ids: list[int] = []

    def add(self, token_ids: Sequence[int], finish: Finish | None) -> None:
        self._ids += token_ids

    @property
    def text(self) -> str:
        return text_after(self._tokenizer, self._prompt_ids, self._ids)


def text_after(tokenizer: Tokenizer, prompt: Sequence[int], output: Sequence[int]) -> str:
    """The text that ``output`` adds to that of ``prompt``: decoded alone, it might lose its leading space."""
    for size in range(_CONTEXT_TOKENS, _CONTEXT_TOKENS + _MOST_BYTES):
        context = list(prompt[-size:])
        text = tokenizer.decode([*context, *output])
        if not text.startswith(_REPLACEMENT):  # otherwise it may begin inside a character, and spoil the following ones
            break
    # Drop the prompt's text as far as it is unchanged: a character that ``output`` completes is not.
    before = (tokenizer.decode(context[:end]) for end in range(len(context), 0, -1))
    return text.removeprefix(next((each for each in before if text.startswith(each)), ""))


def _refuse(field: str, needs: str, instead: str) -> NoReturn:
    problem = f"{needs} the model's own tokenizer, and this LLM was given another object; {instead}"
    raise InvalidRequestError(field, problem)
