"""Validation of a ``Request``. All other modules rely on these checks.

Each check raises ``InvalidRequestError`` with the name of the field and its accepted values. Types are checked first,
so that no wrong type reaches a step. Numbers must be Python's own, because numpy's would overflow in a step.
Comparisons are written so that NaN, for which every comparison is false, is refused.
"""

from __future__ import annotations

import reprlib
from collections.abc import Collection, Iterable, Mapping, Set
from itertools import chain
from math import inf
from types import UnionType

from engine_core.config import ModelSpec
from engine_core.errors import InvalidRequestError, written
from engine_core.media import (
    CHANNELS,
    MAX_SIDE,
    MAX_VIEWS,
    MEDIA_DIGEST_BYTES,
    MediaItem,
    Picture,
    PictureShape,
    View,
    VisionShape,
)
from engine_core.pooling.facts import PoolingFacts
from engine_core.request import BeamSearch, NoRepeatNgram, ReasoningBudget, Request, SamplingParams

MAX_CHOICES = 128
MAX_LOGPROBS = 20
MAX_LOGIT_BIAS = 100.0
SCALE_LIMIT = 2.0**31
"""Exclusive upper limit of ``temperature`` and ``repetition_penalty``."""
LEAST_PENALTY = 2.0**-31
"""Lower limit of ``repetition_penalty``. Far smaller ones are 0 in float32, and 0 times a banned token's −∞ is NaN."""
MAX_LIST_ITEMS = 1024
"""Limit on the entries of ``logit_bias`` and ``stop_token_ids``, and on all tokens of ``bad_words_token_ids``."""

MAX_NGRAM = 1024
"""Limit of ``no_repeat_ngram.ngram_size``."""
MAX_NGRAM_WINDOW = 65536
MAX_REASONING_TOKENS = 2**31 - 1
MAX_MARKER_TOKENS = 16
"""Limit on a marker around reasoning."""
MAX_BEAM_WIDTH = 64
MAX_LENGTH_PENALTY = 5.0
"""A length to this power is a float32."""
_WITHOUT_BEAMS = (
    "top_k",
    "top_p",
    "min_p",
    "frequency_penalty",
    "presence_penalty",
    "grammar",
    "reasoning_budget",
    "no_repeat_ngram",
    "logprobs",
    "prompt_logprobs",
)
"""What a beam search cannot have: transformers' has none of it, or defines it in another way."""
_INTEGERS = ("seed", "n", "max_tokens", "min_tokens")
_OPTIONAL_INTEGERS = ("top_k", "logprobs", "prompt_logprobs")
_NUMBERS = ("temperature", "top_p", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty")
_LISTS = (tuple, list)


def no_tokens(name: str, facts: PoolingFacts) -> str:
    """What is wrong with asking the model of that name, which pools, for tokens."""
    return f"{name} generates no tokens; ask it for what it computes: {', '.join(task.value for task in facts.tasks)}"


def validate_request(request: Request, model: ModelSpec, grammar_support: str | None = None) -> None:
    """Raise ``InvalidRequestError`` for the first field of ``request`` that ``model`` cannot serve.

    ``grammar_support``: why grammars cannot be used; None if they can.
    """
    _check_types(request)
    if model.pooling is not None:
        raise InvalidRequestError("params", no_tokens(model.name, model.pooling))
    if not request.request_id:
        raise InvalidRequestError("request_id", "is empty; expected a name that no live request has")
    _check_prompt(request.prompt_token_ids, model)
    if request.media:
        _check_media(request, model)
    params = request.params
    _check_param_types(params)
    check_numbers(params)
    _check_lengths(params)
    _check_token_sets(params, model)
    if request.params.reasoning_budget is not None:
        _check_budget(request.params.reasoning_budget, model)
    if params.no_repeat_ngram is not None:
        _check_ngram(params.no_repeat_ngram, model)
    if params.beam_search is not None:
        _check_beams(params.beam_search, params)
    _check_something_is_left(params, model)
    _check_grammar(params, grammar_support)
    _check_resume(request, model)
    if request.deadline is not None and not -inf < request.deadline < inf:
        raise InvalidRequestError("deadline", f"is {request.deadline}; expected seconds on the engine's clock")


def _check_types(request: Request) -> None:
    check_type("request_id", request.request_id, str, "text")
    check_type("prompt_token_ids", request.prompt_token_ids, _LISTS, "a tuple of token ids")
    if type(request.params) is not SamplingParams:  # LLM's own have stop strings, which would be ignored here
        refuse("params", f"of type {type(request.params).__name__}", "SamplingParams of engine_core.request")
    check_integer("priority", request.priority)
    check_type("tenant", request.tenant, str, "text")
    check_type("cache_salt", request.cache_salt, bytes, "bytes")
    if request.deadline is not None:
        check_number("deadline", request.deadline)
    check_type("media", request.media, tuple, "a tuple of MediaItem")
    for item in request.media:
        _check_picture_types(item)
    check_type("resume", request.resume, Mapping, "token ids by choice")
    for choice, output in request.resume.items():
        check_integer("resume", choice)
        check_type("resume", output, _LISTS, "a tuple of token ids for each choice")


def _check_picture_types(item: MediaItem) -> None:
    check_type("media", item, MediaItem, "a MediaItem")
    check_integer("media", item.offset)
    picture = item.picture
    check_type("media", picture, Picture, "a Picture")
    check_type("media", picture.shape, PictureShape, "a PictureShape")
    for name in PictureShape.__slots__:
        check_integer("media", getattr(picture.shape, name))
    check_type("media", picture.digest, bytes, "bytes")
    check_type("media", picture.views, tuple, "a tuple of views")
    for view in picture.views:
        check_type("media", view, View, "a View")
        check_integer("media", view.height)
        check_integer("media", view.width)
        check_type("media", view.pixels, bytes, "bytes")


def _check_param_types(params: SamplingParams) -> None:
    for name in _INTEGERS:
        check_integer(name, getattr(params, name))
    for name in _OPTIONAL_INTEGERS:
        if (value := getattr(params, name)) is not None:
            check_integer(name, value)
    for name in _NUMBERS:
        check_number(name, getattr(params, name))
    check_type("ignore_eos", params.ignore_eos, bool, "True or False")
    check_type("logit_bias", params.logit_bias, Mapping, "numbers by token id")
    for bias in params.logit_bias.values():
        check_number("logit_bias", bias)
    check_type("stop_token_ids", params.stop_token_ids, Set, "a set of token ids")
    check_type("bad_words_token_ids", params.bad_words_token_ids, _LISTS, "a tuple of words")
    for word in params.bad_words_token_ids:
        check_type("bad_words_token_ids", word, _LISTS, "a tuple of token ids for each word")
    if params.allowed_token_ids is not None:
        check_type("allowed_token_ids", params.allowed_token_ids, _LISTS, "a tuple of token ids, or none")
    if params.grammar is not None:
        check_type("grammar", params.grammar, str, "text, or none")
    if (budget := params.reasoning_budget) is not None:
        check_type("reasoning_budget", budget, ReasoningBudget, "a ReasoningBudget, or none")
        check_integer("reasoning_budget", budget.max_tokens)
        for marker in (budget.opening, budget.closing, budget.again):
            check_type("reasoning_budget", marker, _LISTS, "a tuple of token ids for each marker")
        check_type("reasoning_budget", budget.begun, bool, "True or False, whether the prompt has begun it")
        check_type("reasoning_budget", budget.blank, Set, "a set of token ids of white space")
    if (search := params.beam_search) is not None:
        check_type("beam_search", search, BeamSearch, "a BeamSearch, or none")
        check_integer("beam_search.width", search.width)
        check_number("beam_search.length_penalty", search.length_penalty)
        check_type("beam_search.early_stopping", search.early_stopping, bool | None, "True, False or None (never)")
    if (rule := params.no_repeat_ngram) is not None:
        check_type("no_repeat_ngram", rule, NoRepeatNgram, "a NoRepeatNgram, a dictionary with its fields, or none")
        check_integer("no_repeat_ngram", rule.ngram_size)
        check_integer("no_repeat_ngram", rule.window_size)
        check_type("no_repeat_ngram", rule.allowed_token_ids, Set, "a set of token ids that may be drawn all the same")


def check_type(field: str, value: object, types: type | UnionType | tuple[type, ...], accepted: str) -> None:
    """Raise ``InvalidRequestError`` unless ``value`` is of one of ``types``; ``accepted`` describes them."""
    if not isinstance(value, types):
        refuse(field, f"{written(value, reprlib.repr)}, of type {type(value).__name__}", accepted)


def check_integer(field: str, value: object) -> None:
    """Raise ``InvalidRequestError`` unless ``value`` is one of Python's own integers."""
    if type(value) is not int:
        refuse(field, f"{written(value, reprlib.repr)}, of type {type(value).__name__}", "an integer")


def check_number(field: str, value: object) -> None:
    """Raise ``InvalidRequestError`` unless ``value`` is one of Python's own numbers."""
    if type(value) not in (int, float):
        refuse(field, f"{written(value, reprlib.repr)}, of type {type(value).__name__}", "a number")


def _check_prompt(prompt: tuple[int, ...], model: ModelSpec) -> None:
    if not prompt:
        raise InvalidRequestError("prompt_token_ids", "is empty; expected at least one token")
    longest = model.max_model_len - 1
    if len(prompt) > longest:
        raise InvalidRequestError(
            "prompt_token_ids",
            f"has {len(prompt)} tokens; expected at most {longest}, which leaves room for one of output "
            f"(max_model_len is {model.max_model_len})",
        )
    check_ids("prompt_token_ids", prompt, model.vocab_size)


def _check_media(request: Request, model: ModelSpec) -> None:
    """Raise ``InvalidRequestError`` unless pictures of the right types are such as ``model`` takes, in the prompt."""
    vision = model.vision
    if vision is None:
        problem = f"has {len(request.media)} pictures; this model takes no pictures, so expected a prompt of text alone"
        raise InvalidRequestError("media", problem)
    if len(request.media) > (most := vision.limit * vision.parts):
        of_each = "" if vision.parts == 1 else f", {vision.parts} for each of {vision.limit}"
        problem = f"has {len(request.media)} pictures; expected at most {most}{of_each} (--limit-mm-per-prompt)"
        raise InvalidRequestError("media", problem)
    end, length = 0, len(request.prompt_token_ids)
    for place, item in enumerate(request.media):
        _check_picture(place, item.picture, vision)
        if item.offset < end:
            where = f"offset {written(item.offset)} of picture {place}"
            refuse("media", where, f"at least {end}, where the one before ends: pictures by ascending offset")
        end = item.end
        if end > length:
            refuse("media", f"end {written(end)} of picture {place}", f"at most the prompt's length, {length}")


def _check_picture(place: int, picture: Picture, vision: VisionShape) -> None:
    name, shape = f"of picture {place}", picture.shape
    if not 1 <= shape.num_tokens <= vision.max_tokens:
        refuse("media", f"num_tokens {written(shape.num_tokens)} {name}", f"from 1 to {vision.max_tokens}")
    for field in PictureShape.__slots__:
        if not 0 <= (value := getattr(shape, field)) < 2**31:
            refuse("media", f"{field} {written(value)} {name}", "from 0 to 2^31 - 1")
    if len(picture.digest) != MEDIA_DIGEST_BYTES:
        refuse("media", f"a digest {name} of {len(picture.digest)} bytes", f"{MEDIA_DIGEST_BYTES} bytes")
    if not 1 <= len(picture.views) <= MAX_VIEWS:
        refuse("media", f"{len(picture.views)} views {name}", f"from 1 to {MAX_VIEWS}")
    for view in picture.views:
        if not (1 <= view.height <= MAX_SIDE and 1 <= view.width <= MAX_SIDE):
            refuse(
                "media", f"a view {name} of {written(view.height)} × {written(view.width)} pixels", f"up to {MAX_SIDE}"
            )
        if len(view.pixels) != (size := view.height * view.width * CHANNELS):
            refuse("media", f"a view {name} of {len(view.pixels)} bytes", f"{size}, as its sides have it")


def check_numbers(params: SamplingParams) -> None:
    """Raise ``InvalidRequestError`` for the first parameter that is a number, and out of range."""
    if not 0 <= params.temperature < SCALE_LIMIT:
        refuse("temperature", params.temperature, "at least 0 and less than 2^31")
    if params.top_k is not None and not params.top_k >= 1:
        refuse("top_k", params.top_k, "at least 1, or none to keep all tokens")
    if not 0 < params.top_p <= 1:
        refuse("top_p", params.top_p, "more than 0 and at most 1")
    if not 0 <= params.min_p <= 1:
        refuse("min_p", params.min_p, "from 0 to 1")
    for name in ("frequency_penalty", "presence_penalty"):
        if not -2 <= (value := getattr(params, name)) <= 2:
            refuse(name, value, "from -2 to 2")
    if not LEAST_PENALTY <= params.repetition_penalty < SCALE_LIMIT:
        refuse("repetition_penalty", params.repetition_penalty, "at least 2^-31 and less than 2^31")
    if not 0 <= params.seed < 2**64:
        refuse("seed", params.seed, "an unsigned number of 64 bits")


def _check_lengths(params: SamplingParams) -> None:
    if not 1 <= params.n <= MAX_CHOICES:
        refuse("n", params.n, f"from 1 to {MAX_CHOICES}")
    if not params.max_tokens >= 1:
        refuse("max_tokens", params.max_tokens, "at least 1")
    if not 0 <= params.min_tokens <= params.max_tokens:
        refuse("min_tokens", params.min_tokens, f"from 0 to max_tokens ({written(params.max_tokens)})")
    for name in ("logprobs", "prompt_logprobs"):
        value = getattr(params, name)
        if value is not None and not 0 <= value <= MAX_LOGPROBS:
            refuse(name, value, f"from 0 to {MAX_LOGPROBS}, or none")


def _check_token_sets(params: SamplingParams, model: ModelSpec) -> None:
    vocab_size = model.vocab_size
    _check_count("logit_bias", params.logit_bias)
    check_ids("logit_bias", params.logit_bias, vocab_size)
    for token_id, bias in params.logit_bias.items():
        if not -MAX_LOGIT_BIAS <= bias <= MAX_LOGIT_BIAS:
            refuse(
                "logit_bias", f"{written(bias)} for token {token_id}", f"from {-MAX_LOGIT_BIAS:g} to {MAX_LOGIT_BIAS:g}"
            )
    _check_count("stop_token_ids", params.stop_token_ids)
    check_ids("stop_token_ids", params.stop_token_ids, vocab_size)
    if not all(params.bad_words_token_ids):
        raise InvalidRequestError("bad_words_token_ids", "has an empty word; expected at least one token in each")
    in_bad_words = list(chain.from_iterable(params.bad_words_token_ids))
    _check_count("bad_words_token_ids", in_bad_words)
    check_ids("bad_words_token_ids", in_bad_words, vocab_size)
    allowed = params.allowed_token_ids
    if allowed is not None:
        if not 1 <= len(allowed) <= vocab_size:
            problem = f"has {len(allowed)} tokens; expected from 1 to {vocab_size}, or none to allow all"
            raise InvalidRequestError("allowed_token_ids", problem)
        check_ids("allowed_token_ids", allowed, vocab_size)


def _check_budget(budget: ReasoningBudget, model: ModelSpec) -> None:
    if not 0 <= budget.max_tokens <= MAX_REASONING_TOKENS:
        refuse("reasoning_budget", f"{written(budget.max_tokens)} tokens", f"from 0 to {MAX_REASONING_TOKENS}")
    longest = max(map(len, (budget.opening, budget.closing, budget.again)))
    if not budget.closing or longest > MAX_MARKER_TOKENS:
        problem = f"has a marker that closes of {len(budget.closing)} tokens, and the longest marker has {longest}"
        raise InvalidRequestError(
            "reasoning_budget", f"{problem}; expected at most {MAX_MARKER_TOKENS}, and at least one that closes"
        )
    _check_count("reasoning_budget", budget.blank)
    ids = (*budget.opening, *budget.closing, *budget.again, *budget.blank)
    check_ids("reasoning_budget", ids, model.vocab_size)


def _check_ngram(rule: NoRepeatNgram, model: ModelSpec) -> None:
    for name, most in (("ngram_size", MAX_NGRAM), ("window_size", MAX_NGRAM_WINDOW)):
        if not 1 <= (value := getattr(rule, name)) <= most:
            refuse("no_repeat_ngram", f"{name} {written(value)}", f"from 1 to {most}")
    _check_count("no_repeat_ngram", rule.allowed_token_ids)
    check_ids("no_repeat_ngram", rule.allowed_token_ids, model.vocab_size)


def _check_beams(search: BeamSearch, params: SamplingParams) -> None:
    if not 1 <= search.width <= MAX_BEAM_WIDTH:
        refuse("beam_search.width", search.width, f"from 1 to {MAX_BEAM_WIDTH}")
    if params.n > search.width:
        refuse("n", params.n, f"at most the beam search's width, {search.width}")
    if not -MAX_LENGTH_PENALTY <= search.length_penalty <= MAX_LENGTH_PENALTY:
        accepted = f"from {-MAX_LENGTH_PENALTY:g} to {MAX_LENGTH_PENALTY:g}"
        refuse("beam_search.length_penalty", search.length_penalty, accepted)
    if params.temperature:
        refuse("temperature", params.temperature, "0 with beam_search, which draws nothing")
    neutral = SamplingParams()
    for name in _WITHOUT_BEAMS:
        if (value := getattr(params, name)) != (default := getattr(neutral, name)):
            shown = written(value, reprlib.repr)
            raise InvalidRequestError(name, f"is {shown}; expected {default} with beam_search, which does without it")


def _check_something_is_left(params: SamplingParams, model: ModelSpec) -> None:
    """Require that bans leave a candidate for the first token."""
    banned = {word[0] for word in params.bad_words_token_ids if len(word) == 1}
    allowed: Iterable[int] = range(model.vocab_size) if params.allowed_token_ids is None else params.allowed_token_ids
    if all(token_id in banned for token_id in allowed):
        problem = "bans every allowed token; expected at least one that is not banned"
        raise InvalidRequestError("bad_words_token_ids", problem)
    if params.min_tokens == 0:
        return
    banned |= params.stop_token_ids
    if not params.ignore_eos:
        banned.update(model.eos_token_ids)
    if all(token_id in banned for token_id in allowed):
        problem = "every allowed token is banned or ends the output; expected 0, or an allowed token that does neither"
        raise InvalidRequestError("min_tokens", problem)


def _check_grammar(params: SamplingParams, grammar_support: str | None) -> None:
    """Its text is checked when it is compiled."""
    if params.grammar is None:
        return
    if grammar_support is not None:
        raise InvalidRequestError("grammar", f"cannot be used here: {grammar_support}")
    if params.allowed_token_ids is not None:
        problem = "is given together with a grammar, which says what is allowed; expected one of the two"
        raise InvalidRequestError("allowed_token_ids", problem)


def _check_resume(request: Request, model: ModelSpec) -> None:
    params = request.params
    longest = min(params.max_tokens, model.max_model_len - len(request.prompt_token_ids))
    for choice, output in request.resume.items():
        if not 0 <= choice < params.n:
            refuse("resume", f"for choice {written(choice)}", f"choices from 0 to {params.n - 1}, as n is {params.n}")
        if len(output) > longest:
            accepted = f"at most {longest}, as max_tokens and the context allow"
            refuse("resume", f"{len(output)} tokens for choice {choice}", accepted)
        check_ids("resume", output, model.vocab_size)


def check_ids(field: str, token_ids: Collection[int], vocab_size: int) -> None:
    """Raise ``InvalidRequestError`` unless all ``token_ids`` are those of a vocabulary of ``vocab_size``."""
    if set(map(type, token_ids)) - {int}:
        for token_id in token_ids:
            check_integer(field, token_id)
    if token_ids and not (min(token_ids) >= 0 and max(token_ids) < vocab_size):
        outside = next(token_id for token_id in token_ids if not 0 <= token_id < vocab_size)
        raise InvalidRequestError(field, f"has token id {written(outside)}; expected ids from 0 to {vocab_size - 1}")


def _check_count(field: str, items: Collection[object]) -> None:
    if len(items) > MAX_LIST_ITEMS:
        raise InvalidRequestError(field, f"has {len(items)} tokens; expected at most {MAX_LIST_ITEMS}")


def refuse(field: str, value: object, accepted: str) -> None:
    """Raise ``InvalidRequestError``."""
    shown = value if isinstance(value, str) else written(value)
    raise InvalidRequestError(field, f"is {shown}; expected {accepted}")
