"""Text for ``LLM`` by the model's tokenizer: prompts to ids, chats to prompts, ids to text, stop strings, grammars.

It uses ``text_core``, so that texts are the same as in the ring. ``LLM`` loads this module with the first text; token
ids alone need none of it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

from engine_core.config import ModelConfig
from engine_core.errors import CheckpointError, InvalidRequestError
from engine_core.model_loader.chat_template import with_template
from engine_core.model_loader.pooled_tokenizer import for_pooling
from engine_core.model_loader.tokenizer import tokenizer_directory
from engine_core.offline.conversations import Conversation, as_json, read_conversations
from engine_core.offline.model_pictures import NO_PICTURES, Pictures
from engine_core.offline.prompts import Prompt
from engine_core.offline.sampling_params import SamplingParams
from engine_core.offline.text import ChoiceText, Pair, Stopped
from engine_core.pooling.facts import PairForm
from engine_core.pooling.params import PoolingInput
from engine_core.request import Finish
from text_core.chat_templates import ChatTemplateError, ChatTemplates
from text_core.choice_decoder import ChoiceDecoder, DecodeOptions
from text_core.grammar.constraints import (
    Constraint,
    ConstraintError,
    Grammar,
    JsonObject,
    JsonSchema,
    OneOf,
    Regex,
)
from text_core.grammar.grammar_text import grammar_of
from text_core.incremental_decoder import left_context
from text_core.pictures.registry import parse_facts, processor_of
from text_core.pooled_inputs import Chats, Cut, InputError, Inputs, Length, Segments, Texts
from text_core.pooled_inputs import Pair as TextPair
from text_core.stop_strings import MAX_STOP_STRING_BYTES, MAX_STOP_STRINGS, MAX_STOP_STRINGS_TOTAL_BYTES
from text_core.tokenizer import Tokenizer as ModelTokenizer
from text_core.tokenizer_files import NEEDS_TOKENIZER, NO_TOKENIZER, read_tokenizer_files

_OF_TENSORS = ("padding", "truncation", "max_length", "return_tensors", "return_dict", "return_assistant_tokens_mask")
"""Parameters of transformers' ``apply_chat_template`` for what is not a text or a list of ids."""


class ChatTokenizer(ModelTokenizer):
    """The model's tokenizer, with its chat templates."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        super().__init__(files)
        self._template_files = {name: data for name, data in files.items() if name != "tokenizer.json"}

    def encode(
        self, text: str, *, add_special_tokens: bool = True, truncate_prompt_tokens: int | None = None
    ) -> list[int]:
        """As any tokenizer; raises ``CheckpointError`` if the engine was started without one."""
        if self.is_empty:
            raise CheckpointError(f"a text {NEEDS_TOKENIZER}")
        return super().encode(
            text, add_special_tokens=add_special_tokens, truncate_prompt_tokens=truncate_prompt_tokens
        )

    @cached_property
    def templates(self) -> ChatTemplates:
        """Raises ``CheckpointError`` if they cannot be read."""
        try:
            return ChatTemplates.from_files(self._template_files)
        except ValueError as error:
            raise CheckpointError(f"the chat template cannot be read: {' '.join(str(error).split())}") from error

    def apply_chat_template(
        self,
        conversation: Sequence[Mapping[str, Any]] | Sequence[Sequence[Mapping[str, Any]]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        chat_template: str | None = None,
        add_generation_prompt: bool = False,
        continue_final_message: bool = False,
        tokenize: bool = True,
        **template_args: Any,
    ) -> str | list[int] | list[str] | list[list[int]]:
        """A conversation as a prompt, or a list of them as a list: ids, or without ``tokenize`` text.

        Its parameters are those of transformers, further ones are variables of the template. ``chat_template`` is the
        name of one of the model's own.
        """
        for name in _OF_TENSORS:
            if template_args.pop(name, None):
                raise TypeError(f"parameter {name!r} is not supported: a prompt is text or a list of token ids")
        conversations = read_conversations(conversation)
        if pictures := [picture for each in conversations for picture in each.pictures]:
            raise InvalidRequestError(pictures[0].place, "is a picture; LLM.chat takes them, a prompt of ids does not")
        prompts: list[Any] = []
        for each in conversations:
            text = self.render(
                each.place,
                each.messages,
                tools=None if tools is None else as_json(tools, list, "tools"),
                template_name=chat_template,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                template_args=as_json(template_args, dict, "the template's variables"),
            )
            prompts.append(self.encode(text, add_special_tokens=False) if tokenize else text)
        is_one = len(conversations) == 1 and conversations[0].place == "messages"
        return prompts[0] if is_one else prompts

    def render(self, place: str, messages: Sequence[Mapping[str, Any]], **template: Any) -> str:
        """The prompt's text; it has the special tokens. Raises ``InvalidRequestError``, naming ``place``."""
        try:
            return self.templates.render(messages, **template)
        except ChatTemplateError as error:
            raise InvalidRequestError(place, str(error)) from None


class ModelText:
    """Text by a model's tokenizer and templates, as in the ring."""

    def __init__(self, config: ModelConfig, picture_facts: Mapping[str, Any] | None = None) -> None:
        """Read the files that ``config`` names. Raises ``CheckpointError``.

        ``picture_facts``: the model's, as the executor has them; None if it takes no pictures.
        """
        self._picture_facts = picture_facts
        try:
            self.tokenizer = ChatTokenizer.from_files(_files(config))
        except ValueError as error:
            raise CheckpointError(f"the tokenizer cannot be read: {' '.join(str(error).split())}") from error

    def check(self, params: SamplingParams, place: str) -> None:
        field = f"{place}: stop"
        if params.stop_strings and self.tokenizer.is_empty:
            raise InvalidRequestError(field, NEEDS_TOKENIZER)
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

    def grammar(self, form: str, value: Any, params: SamplingParams, place: str) -> str:
        constraints: dict[str, Callable[[], Constraint]] = {
            "json_schema": lambda: JsonSchema(value, params.any_whitespace),
            "json_object": lambda: JsonObject(params.any_whitespace),
            "regex": lambda: Regex(value),
            "choice": lambda: OneOf(value),
            "grammar": lambda: Grammar(value),
        }
        try:
            return grammar_of(constraints[form]())
        except ConstraintError as error:
            raise InvalidRequestError(f"{place}: {error.field or form}", error.problem) from None

    @cached_property
    def _pictures(self) -> Pictures | None:
        """Raises ``CheckpointError``."""
        if self._picture_facts is None:
            return None
        try:
            facts = parse_facts(json.dumps(self._picture_facts).encode())
            facts = replace(facts, special_tokens=self.tokenizer.added_tokens())
            return Pictures(processor_of(facts), facts.limit)
        except ValueError as error:
            raise CheckpointError(f"the model's pictures cannot be prepared: {error}") from None

    def render(self, conversation: Conversation, **template: Any) -> Prompt:
        place, pictures = conversation.place, self._pictures
        if pictures is None or not conversation.pictures:
            if conversation.pictures:
                raise InvalidRequestError(conversation.pictures[0].place, NO_PICTURES)
            text = self.tokenizer.render(place, conversation.messages, **template)
            ids = self.tokenizer.encode(text, add_special_tokens=False)  # the template writes them
            return Prompt(place, text, tuple(ids))
        pictures.check_texts(place, conversation.messages)
        placeholder = pictures.processor.placeholder
        text = self.tokenizer.render(place, conversation.messages, placeholder=placeholder, **template)
        prompt = Prompt(place, text, None, conversation.pictures)
        return pictures.placed(prompt, partial(self.tokenizer.encode, add_special_tokens=False))

    def with_pictures(self, prompt: Prompt) -> Prompt:
        if self._pictures is None:
            raise InvalidRequestError(prompt.place, NO_PICTURES)
        return self._pictures.placed(prompt, self.tokenizer.encode)

    def pooled_texts(
        self, prompts: Sequence[Prompt], before: Sequence[str], cut: int | None, most: int
    ) -> list[PoolingInput]:
        places, texts = [each.place for each in prompts], [each.text or "" for each in prompts]
        return self._encoded(Texts(places, texts, before, self._for_texts(), _length(cut, most)))

    def pooled_pairs(
        self, pairs: Sequence[Pair], form: PairForm, instruction: str, cut: int | None, most: int
    ) -> list[PoolingInput]:
        read = [TextPair(a.place, a.text or "", b.place, b.text or "") for a, b in pairs]
        tokenizer, length = self._for_texts(), _length(cut, most)
        if form is PairForm.TEMPLATE:
            return self._encoded(Chats(read, instruction, tokenizer, tokenizer.templates.render, length))
        if instruction:
            raise InvalidRequestError("instruction", "has no place in what this model reads; expected none")
        return self._encoded(Segments(read, tokenizer, length))

    def _for_texts(self) -> ChatTokenizer:
        """Raises ``CheckpointError`` if there is none."""
        if self.tokenizer.is_empty:
            raise CheckpointError(f"a text {NEEDS_TOKENIZER}")
        return self.tokenizer

    def _encoded(self, inputs: Inputs) -> list[PoolingInput]:
        try:
            found = inputs.encode(0, len(inputs.places))
        except InputError as error:
            raise InvalidRequestError(error.place, error.problem) from None
        return [PoolingInput(tuple(ids), second_text) for ids, second_text in found]

    def choice(self, prompt_ids: Sequence[int], params: SamplingParams) -> ChoiceText:
        pieces = self.tokenizer.pieces(skip_special_tokens=params.skip_special_tokens)
        options = DecodeOptions(
            context=tuple(left_context(pieces, prompt_ids)),
            stop=params.stop_strings,
            include_stop_str_in_output=params.include_stop_str_in_output,
            min_tokens=params.min_tokens,
        )
        return _DecodedChoice(ChoiceDecoder(pieces, options))

    def token_text(self, token_id: int) -> str:
        return self.tokenizer.token_bytes(token_id).decode(errors="replace")


def _length(cut: int | None, most: int) -> Length:
    """How long an input may be, which is cut at its end to ``cut`` tokens, if at all."""
    way = "PoolingParams(truncate_prompt_tokens=-1) cuts longer ones"
    return Length(most, None, way) if cut is None else Length(cut, Cut.END, way)


def _files(config: ModelConfig) -> dict[str, bytes]:
    if config.skip_tokenizer_init:
        return NO_TOKENIZER
    with tokenizer_directory(config) as directory:
        return with_template(for_pooling(read_tokenizer_files(directory), config), config)


class _DecodedChoice:
    def __init__(self, decoder: ChoiceDecoder) -> None:
        self._decoder = decoder
        self._parts: list[str] = []

    def add(self, token_ids: Sequence[int], finish: Finish | None) -> Stopped | None:
        if finish is None:
            delta = self._decoder.feed(token_ids)
        else:
            delta = self._decoder.finish(token_ids, stop_token=finish.stop_token_id is not None)
        if delta is None:
            return None
        self._parts.append(delta.text)
        return Stopped(delta.stop, delta.end) if isinstance(delta.stop, str) else None  # stop tokens are the engine's

    @property
    def text(self) -> str:
        return "".join(self._parts)
