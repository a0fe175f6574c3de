"""Size limits of a Submit, checked before any of its fields is copied.

Frames are measured before they are parsed, since many may wait for one step. The core validates the values.
"""

from __future__ import annotations

from collections.abc import Collection

from ringline.engine.v1 import engine_pb2
from ringline.types.v1 import sampling_pb2

from engine_core.config import ModelSpec
from engine_core.validation import MAX_LIST_ITEMS, MAX_LOGPROBS, MAX_MARKER_TOKENS
from services.common.rpc.message_limits import MessageLimits
from services.ring.errors import invalid_field
from services.ring.identity import (
    BEAM_SEARCH,
    CONSTRAINT,
    ENGINE_CAPABILITIES,
    MEDIA,
    NO_REPEAT_NGRAM,
    check_requires,
)
from services.ring.limits import (
    MAX_ALLOWED_BY_NGRAM,
    MAX_BEAM_WIDTH,
    MAX_CHOICES,
    MAX_POOLED_CHOICES,
    MAX_STOP_TOKEN_IDS,
    max_pooled_tokens,
)

MAX_BAD_WORDS = 256
MAX_CACHE_SALT_BYTES = 64
MAX_TENANT_BYTES = 512
MAX_CONSTRAINT_BYTES, MAX_PARSE_BYTES = 1 << 20, 16 << 10
"""Every callable tool has a schema; a constraint of another kind has at most 256 KiB of text."""
MAX_PLACES = 4096
"""Pictures of a prompt, each tile of a picture that is cut counted for itself."""
MAX_FRAME_FIELDS = 1 << 16
_LAST_EARLY_STOPPING = max(sampling_pb2.BeamSearch.EarlyStopping.values())
_LEAST_FRAME_BYTES = 1 << 20
_BYTES_PER_ID = 3
"""Wire size of an id of the largest vocabularies in a packed list."""
_BYTES_PER_INPUT = 24
"""Wire size of an input besides its ids."""


def frame_limits(model: ModelSpec) -> MessageLimits:
    """Limits of one frame: the most that a link sends at a time, plus one Submit that resumes every choice."""
    if model.pooling is not None:
        submit = MAX_POOLED_CHOICES * _BYTES_PER_INPUT + _BYTES_PER_ID * max_pooled_tokens(model.max_model_len)
        return MessageLimits(_LEAST_FRAME_BYTES + submit, MAX_FRAME_FIELDS)
    resumed = MAX_CHOICES * _BYTES_PER_ID * model.max_model_len
    submit = MAX_CONSTRAINT_BYTES + MAX_PARSE_BYTES + 16 * model.max_model_len + 5 * model.vocab_size + resumed
    return MessageLimits(_LEAST_FRAME_BYTES + submit, MAX_FRAME_FIELDS)


def check_size(
    submit: engine_pb2.Submit, model: ModelSpec, capabilities: Collection[str] = ENGINE_CAPABILITIES
) -> None:
    """Raise ``Refused`` for the first field that is larger or smaller than the contract allows for ``model``.

    ``capabilities``: this engine's; a constraint is never ignored, even if ``requires`` does not name it.
    """
    check_requires(submit.requires, capabilities)
    if submit.HasField("constraint"):
        check_requires([CONSTRAINT], capabilities)
        _check("constraint", submit.constraint.ByteSize(), "bytes", 0, MAX_CONSTRAINT_BYTES)
        _check("parse", submit.parse.ByteSize(), "bytes", 0, MAX_PARSE_BYTES)
    if submit.media:
        check_requires([MEDIA], capabilities)
        _check("media", len(submit.media), "pictures", 0, min(len(submit.prompt_token_ids), MAX_PLACES))
    sampling = submit.sampling
    if sampling.HasField("no_repeat_ngram"):
        check_requires([NO_REPEAT_NGRAM], capabilities)
        allowed = len(sampling.no_repeat_ngram.allowed_token_ids)
        _check("sampling.no_repeat_ngram.allowed_token_ids", allowed, "ids", 0, MAX_ALLOWED_BY_NGRAM)
    if submit.HasField("beam_search"):
        check_requires([BEAM_SEARCH], capabilities)
        _check("beam_search.width", submit.beam_search.width, "beams", 1, MAX_BEAM_WIDTH)
        # It decides tokens: a later one must not be taken for the default.
        _check("beam_search.early_stopping", submit.beam_search.early_stopping, "", 0, _LAST_EARLY_STOPPING)
    n = sampling.n if sampling.HasField("n") else 1
    _check("sampling.n", n, "", 1, MAX_CHOICES)
    _check("prompt_token_ids", len(submit.prompt_token_ids), "ids", 1, model.max_model_len - 1)
    _check("resume", len(submit.resume), "choices", 0, n)
    for index, resumed in enumerate(submit.resume):
        _check(f"resume[{index}].token_ids", len(resumed.token_ids), "ids", 0, model.max_model_len)
    _check("sampling.logit_bias", len(sampling.logit_bias), "entries", 0, MAX_LIST_ITEMS)
    _check("sampling.allowed_token_ids", len(sampling.allowed_token_ids), "ids", 0, model.vocab_size)
    _check("bad_words", len(submit.bad_words), "words", 0, MAX_BAD_WORDS)
    _check("bad_words", sum(len(word.ids) for word in submit.bad_words), "ids together", 0, MAX_LIST_ITEMS)
    _check("stop_token_ids", len(submit.stop_token_ids), "ids", 0, MAX_STOP_TOKEN_IDS)
    for name in ("opening", "closing", "again"):
        size = len(getattr(submit.reasoning_budget, name))
        _check(f"reasoning_budget.{name}", size, "ids", 0, MAX_MARKER_TOKENS)
    _check("reasoning_budget.blank", len(submit.reasoning_budget.blank), "ids", 0, MAX_LIST_ITEMS)
    check_envelope(submit)
    _check("logprobs", submit.logprobs, "alternatives", 0, MAX_LOGPROBS)
    _check("prompt_logprobs", submit.prompt_logprobs, "alternatives", 0, MAX_LOGPROBS)


def check_envelope(submit: engine_pb2.Submit) -> None:
    """The same for the fields that requests of every kind have."""
    _check("tenant", len(submit.tenant.encode()), "bytes", 0, MAX_TENANT_BYTES)
    _check("cache_salt", len(submit.cache_salt), "bytes", 0, MAX_CACHE_SALT_BYTES)
    if submit.HasField("timeout_ms"):
        _check("timeout_ms", submit.timeout_ms, "", 1, 2**64 - 1)


def _check(field: str, count: int, noun: str, least: int, most: int) -> None:
    if not least <= count <= most:
        expected = f"at most {most}" if least == 0 else f"{least} to {most}"
        raise invalid_field(field, f"{count}{noun and ' '}{noun}: expected {expected}")
