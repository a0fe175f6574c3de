"""Text for ``LLM``: prompts to ids, chats to prompts, ids to text, stop strings.

This is the one module of the engine that imports from ``services``: ``services.text`` is pure, so a result has the same
text here as in the ring. ``LLM`` loads it with the first text; token ids alone need none of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from engine_core.config import ModelConfig
from engine_core.errors import CheckpointError, InvalidRequestError
from engine_core.model_loader.tokenizer import tokenizer_directory
from engine_core.offline_params import SamplingParams, Tokenizer
from engine_core.request import Finish
from services.text.chat_templates import ChatTemplateError, ChatTemplates
from services.text.choice_decoder import ChoiceDecoder, DecodeOptions, Delta
from services.text.incremental_decoder import left_context
from services.text.stop_strings import MAX_STOP_STRING_BYTES, MAX_STOP_STRINGS, MAX_STOP_STRINGS_TOTAL_BYTES
from services.text.tokenizer import Tokenizer as ModelTokenizer
from services.text.tokenizer_files import read_tokenizer_files

_CONTEXT_TOKENS = 16
"""How many of a prompt's last tokens decide how the text after it begins."""
_MOST_BYTES = 4
"""The most bytes of a character, each of which may be a token."""
_REPLACEMENT = "\ufffd"


class ChoiceText(Protocol):
    """The text of one choice, as its ids come."""

    def add(self, token_ids: Sequence[int], finish: Finish | None) -> Delta | None:
        """Take the next ids, and the choice's end if they are its last.

        Returns the delta that ends with a stop string, once there is one; then nothing may be added.
        """

    @property
    def text(self) -> str:
        """What the ids so far say, except what may still become a stop string."""


class Text(Protocol):
    """A tokenizer, and what can be made with it."""

    @property
    def tokenizer(self) -> Tokenizer: ...

    def check_stop(self, params: SamplingParams, place: str) -> None:
        """Raise ``InvalidRequestError``, naming ``place``, for stop strings that cannot be searched for."""

    def render(self, place: str, messages: Sequence[Mapping[str, Any]], **template: Any) -> tuple[str, list[int]]:
        """A conversation as a prompt: its text and its ids. Raises ``InvalidRequestError``, naming ``place``."""

    def choice(self, prompt_ids: Sequence[int], params: SamplingParams) -> ChoiceText: ...


class ModelText:
    """By the tokenizer and the templates of a model, as in the ring."""

    def __init__(self, config: ModelConfig) -> None:
        """Read the files that ``config`` names. Raises ``CheckpointError``."""
        with tokenizer_directory(config) as directory:
            files = read_tokenizer_files(directory)
        try:
            self.tokenizer = ModelTokenizer.from_files(files)
            self._templates = ChatTemplates.from_files(files)
        except ValueError as error:
            raise CheckpointError(f"the tokenizer cannot be read: {' '.join(str(error).split())}") from error

    def check_stop(self, params: SamplingParams, place: str) -> None:
        field = f"{place}: stop"
        for stop in params.stop_strings:
            if not isinstance(stop, str):
                raise InvalidRequestError(field, f"has an item of type {type(stop).__name__}; expected strings")
            try:
                size = len(stop.encode())
            except UnicodeEncodeError:
                raise InvalidRequestError(field, f"has {stop!r}; expected text that UTF-8 can encode") from None
            if not 1 <= size <= MAX_STOP_STRING_BYTES:
                limit = f"expected 1 to {MAX_STOP_STRING_BYTES} bytes"
                raise InvalidRequestError(field, f"has a string of {size} bytes; {limit}")
        count, together = len(params.stop_strings), sum(len(stop.encode()) for stop in params.stop_strings)
        if count > MAX_STOP_STRINGS:
            raise InvalidRequestError(field, f"has {count} strings; expected at most {MAX_STOP_STRINGS}")
        if together > MAX_STOP_STRINGS_TOTAL_BYTES:
            limit = f"expected at most {MAX_STOP_STRINGS_TOTAL_BYTES}"
            raise InvalidRequestError(field, f"has {together} bytes together; {limit}")

    def render(self, place: str, messages: Sequence[Mapping[str, Any]], **template: Any) -> tuple[str, list[int]]:
        try:
            text = self._templates.render(messages, **template)
        except ChatTemplateError as error:
            raise InvalidRequestError(place, str(error)) from None
        return text, self.tokenizer.encode(text, add_special_tokens=False)  # the template writes them

    def choice(self, prompt_ids: Sequence[int], params: SamplingParams) -> ChoiceText:
        pieces = self.tokenizer.pieces(skip_special_tokens=params.skip_special_tokens)
        options = DecodeOptions(
            context=tuple(left_context(pieces, prompt_ids)),
            stop=params.stop_strings,
            include_stop_str_in_output=params.include_stop_str_in_output,
            min_tokens=params.min_tokens,
        )
        return _DecodedChoice(ChoiceDecoder(pieces, options))


class CustomText:
    """By a tokenizer of the caller's, which can only encode and decode."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer

    def check_stop(self, params: SamplingParams, place: str) -> None:
        if params.stop_strings:
            problem = "needs the model's own tokenizer, and this LLM has another object as its tokenizer"
            raise InvalidRequestError(f"{place}: stop", f"{problem}; use stop_token_ids")

    def render(self, place: str, messages: Sequence[Mapping[str, Any]], **template: Any) -> tuple[str, list[int]]:
        problem = "a chat needs the model's own tokenizer, and this LLM has another object as its tokenizer"
        raise InvalidRequestError(place, f"{problem}; render the conversation and call generate")

    def choice(self, prompt_ids: Sequence[int], params: SamplingParams) -> ChoiceText:
        return _CustomChoice(self.tokenizer, prompt_ids)


class _DecodedChoice:
    def __init__(self, decoder: ChoiceDecoder) -> None:
        self._decoder = decoder
        self._parts: list[str] = []

    def add(self, token_ids: Sequence[int], finish: Finish | None) -> Delta | None:
        if finish is None:
            delta = self._decoder.feed(token_ids)
        else:
            delta = self._decoder.finish(token_ids, stop_token=finish.stop_token_id is not None)
        if delta is None:
            return None
        self._parts.append(delta.text)
        return delta if delta.stop is not None else None

    @property
    def text(self) -> str:
        return "".join(self._parts)


class _CustomChoice:
    def __init__(self, tokenizer: Tokenizer, prompt_ids: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._prompt_ids = prompt_ids
        self._ids: list[int] = []

    def add(self, token_ids: Sequence[int], finish: Finish | None) -> Delta | None:
        self._ids += token_ids
        return None

    @property
    def text(self) -> str:
        return text_after(self._tokenizer, self._prompt_ids, self._ids)


def text_after(tokenizer: Tokenizer, prompt: Sequence[int], output: Sequence[int]) -> str:
    """What ``output`` adds to the text of ``prompt``: decoded alone, it may lose the space that it begins with."""
    for size in range(_CONTEXT_TOKENS, _CONTEXT_TOKENS + _MOST_BYTES):
        context = list(prompt[-size:])
        text = tokenizer.decode([*context, *output])
        if not text.startswith(_REPLACEMENT):  # else it may begin inside a character, and spoil those after it
            break
    # Drop as much of the prompt's text as stands unchanged: a character that ``output`` completes does not.
    before = (tokenizer.decode(context[:end]) for end in range(len(context), 0, -1))
    return text.removeprefix(next((each for each in before if text.startswith(each)), ""))
